import { Checkbox, Code, List, Stack, Text } from "@mantine/core";
import { useState } from "react";
import { useQuery } from "urql";

import { REVOKE_SITE_TOKEN, TOKEN_AGENTS } from "../api/documents";
import { failureOf } from "../api/failure";
import { useMutate } from "../api/mutate";
import { Confirm } from "./Confirm";
import { FailureNotice, Loading } from "./Notices";

/** The dialog that revokes a token. It first lists the active agents that enrolled with the token. */
export function RevokeToken(props: {
  tenantId: string;
  token: { id: string; siteId: string; uses: number; maxUses: number };
  onClose: () => void;
  onRevoked: () => void;
}) {
  const { tenantId, token } = props;
  const mutate = useMutate();
  const [revokeAgents, setRevokeAgents] = useState(false);
  const [{ data, error }] = useQuery({
    query: TOKEN_AGENTS,
    variables: { tenantId, siteId: token.siteId, tokenId: token.id },
    requestPolicy: "network-only",
  });
  const agents = data?.siteAgents;
  return (
    <Confirm
      title="Revoke this token?"
      verb="Revoke token"
      onClose={props.onClose}
      act={async () => {
        const input = { tenantId, siteId: token.siteId, tokenId: token.id, revokeAgents };
        const { failure } = await mutate(REVOKE_SITE_TOKEN, { input });
        props.onRevoked();
        return failure;
      }}
    >
      <Stack gap="sm">
        <Text size="sm">
          <Code style={{ overflowWrap: "anywhere" }}>{token.id}</Code> was used {token.uses} of {token.maxUses} times. No
          agent can enrol with it from now on.
        </Text>
        {error && <FailureNotice failure={failureOf(error)} />}
        {!error && !agents && <Loading what="its agents" />}
        {agents?.totalCount === 0 && <Text size="sm">No agent at work enrolled with it.</Text>}
        {agents && agents.totalCount > 0 && (
          <>
            <Text size="sm">
              {agents.totalCount === 1 ? "One agent" : `${agents.totalCount} agents`} enrolled with it and would go on:
            </Text>
            <List size="sm">
              {agents.nodes.map(({ id, name, address }) => (
                <List.Item key={id}>
                  {name}
                  {address && `, last at ${address}`}
                </List.Item>
              ))}
              {agents.totalCount > agents.nodes.length && <List.Item>and more</List.Item>}
            </List>
            <Checkbox
              label="Revoke its agents too"
              description="They are refused at once and lose the boot lease. They cannot come back without a new token."
              checked={revokeAgents}
              onChange={(event) => setRevokeAgents(event.currentTarget.checked)}
            />
          </>
        )}
      </Stack>
    </Confirm>
  );
}
