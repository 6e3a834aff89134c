import { Button, Group, Text } from "@mantine/core";
import { useCallback, useState } from "react";

/**
 * Keeps the cursors of a keyset list: the one that the page begins after, and those of the pages before. `bound` names
 * the filter and order of the list.
 */
export function usePager(bound: string) {
  const [state, setState] = useState<{ bound: string; cursors: string[] }>({ bound, cursors: [] });
  // A cursor belongs to one filter and order. If `bound` changes, the list starts at its first page again.
  const cursors = state.bound === bound ? state.cursors : [];
  const next = useCallback((cursor: string) => setState({ bound, cursors: [...cursors, cursor] }), [bound, cursors]);
  const back = useCallback(() => setState({ bound, cursors: cursors.slice(0, -1) }), [bound, cursors]);
  return { after: cursors.at(-1) ?? null, page: cursors.length + 1, next, back };
}

/** Shows the total, and for a list of several pages the page number and buttons to go back and on. */
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
