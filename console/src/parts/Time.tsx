import { Text, Tooltip } from "@mantine/core";

const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
type Unit = "day" | "hour" | "minute" | "second";
/** Each unit with its length and that of the next smaller one in seconds. The latter rounds 59.9 minutes to an hour. */
const UNITS: [Unit, number, number][] = [
  ["day", 86_400, 3600],
  ["hour", 3600, 60],
  ["minute", 60, 1],
];

function inUnits(seconds: number): [number, Unit] {
  const length = Math.abs(seconds);
  const [unit, size] = UNITS.find(([, size, step]) => Math.round(length / step) * step >= size) ?? (["second", 1] as const);
  return [Math.round(seconds / size), unit];
}

/** Shows a time relative to now, and the exact time on hover. */
export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <Text size="sm">–</Text>;
  return (
    <Tooltip label={EXACT.format(new Date(at))}>
      <Text size="sm" component="time" dateTime={at} style={{ whiteSpace: "nowrap" }}>
        {RELATIVE.format(...inUnits((Date.parse(at) - Date.now()) / 1000))}
      </Text>
    </Tooltip>
  );
}

/** Returns the duration between two times in words, such as "3 hours". */
export function lasting(from: string, to: string): string {
  const [count, unit] = inUnits((Date.parse(to) - Date.parse(from)) / 1000);
  return new Intl.NumberFormat(undefined, { style: "unit", unit, unitDisplay: "long" }).format(count);
}
