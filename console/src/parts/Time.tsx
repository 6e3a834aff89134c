import { Text, Tooltip } from "@mantine/core";

const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
];

/** A time as people say it; exactly, on hover. */
export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <Text size="sm">–</Text>;
  const seconds = (Date.parse(at) - Date.now()) / 1000;
  const [unit, size] = UNITS.find(([, length]) => Math.abs(seconds) >= length) ?? ["second", 1];
  return (
    <Tooltip label={EXACT.format(new Date(at))}>
      <Text size="sm" component="time" dateTime={at}>
        {RELATIVE.format(Math.round(seconds / size), unit as Intl.RelativeTimeFormatUnit)}
      </Text>
    </Tooltip>
  );
}
