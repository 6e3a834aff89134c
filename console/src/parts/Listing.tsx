import { Table } from "@mantine/core";
import type { ReactNode } from "react";
import type { CombinedError } from "urql";

import { failureOf } from "../api/failure";
import { Empty, FailureNotice, Loading } from "./Notices";
import { Pager, type usePager } from "./Pager";

/** A column. Windows narrower than the breakpoint `from` leave it out. A column without `head` has a row's actions. */
export type Column<Row> = {
  head?: string;
  from?: "sm" | "md";
  width?: string;
  cell: (row: Row) => ReactNode;
};

/** Shows a page of a keyset list as a table. Shows failures, the first load and an empty list in its place. */
export function Listing<Row>(props: {
  list:
    | {
        nodes: Row[];
        totalCount: number;
        pageInfo: { hasNextPage: boolean; endCursor?: string | null | undefined };
      }
    | undefined;
  error?: CombinedError | undefined;
  onRetry?: (() => void) | undefined;
  pager: ReturnType<typeof usePager>;
  nouns: [one: string, many: string];
  empty: ReactNode;
  id: (row: Row) => string;
  columns: Column<Row>[];
}) {
  const { list, error, nouns, columns } = props;
  return (
    <>
      {error && <FailureNotice failure={failureOf(error)} onRetry={props.onRetry} />}
      {!error && !list && <Loading what={nouns[1]} />}
      {list?.nodes.length === 0 && <Empty>{props.empty}</Empty>}
      {list && list.nodes.length > 0 && (
        <>
          <Table.ScrollContainer minWidth={340}>
            <Table verticalSpacing="sm">
              <Table.Thead>
                <Table.Tr>
                  {columns.map(({ head, from, width }, at) => (
                    <Table.Th key={at} {...(from && { visibleFrom: from })} {...(width && { w: width })}>
                      {head ?? <span className="visually-hidden">Actions</span>}
                    </Table.Th>
                  ))}
                </Table.Tr>
              </Table.Thead>
              <Table.Tbody>
                {list.nodes.map((row) => (
                  <Table.Tr key={props.id(row)}>
                    {columns.map(({ from, cell }, at) => (
                      <Table.Td key={at} {...(from && { visibleFrom: from })}>
                        {cell(row)}
                      </Table.Td>
                    ))}
                  </Table.Tr>
                ))}
              </Table.Tbody>
            </Table>
          </Table.ScrollContainer>
          <Pager pager={props.pager} total={list.totalCount} nouns={nouns} pageInfo={list.pageInfo} />
        </>
      )}
    </>
  );
}
