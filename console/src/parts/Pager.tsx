import { Button, Group, Text } from "@mantine/core";
import { useCallback, useState } from "react";

/** The cursors of a keyset list: where the page begins, and how to go on and back. */
export function usePager(bound: string) {
  const [state, setState] = useState<{ bound: string; trail: string[] }>({ bound, trail: [] });
  // Cursors belong to one filter and order: with another, the list begins anew.
  const trail = state.bound === bound ? state.trail : [];
  const next = useCallback((cursor: string) => setState({ bound, trail: [...trail, cursor] }), [bound, trail]);
  const back = useCallback(() => setState({ bound, trail: trail.slice(0, -1) }), [bound, trail]);
  return { after: trail.at(-1) ?? null, page: trail.length + 1, next, back };
}

/** The total, the page where there are several, and the two ways to go. */
export function Pager(props: {
  pager: ReturnType<typeof usePager>;
  total: number;
  nouns: [one: string, many: string];
  pageInfo: { hasNextPage: boolean; endCursor?: string | null | undefined };
}) {
  const { pager, pageInfo } = props;
  const end = pageInfo.endCursor;
  return (
    <Group justify="space-between" mt="sm" component="nav" aria-label="Pages">
      <Text size="sm" c="dimmed">
        {props.total} {props.nouns[props.total === 1 ? 0 : 1]}
      </Text>
      {(pager.page > 1 || pageInfo.hasNextPage) && (
        <Group gap="xs">
          <Button size="xs" variant="default" disabled={pager.page === 1} onClick={pager.back}>
            Back
          </Button>
          <Text size="sm">Page {pager.page}</Text>
          <Button
            size="xs"
            variant="default"
            disabled={!pageInfo.hasNextPage || !end}
            onClick={() => end && pager.next(end)}
          >
            Next
          </Button>
        </Group>
      )}
    </Group>
  );
}
