import { Alert, Anchor, Button, Card, Center, PasswordInput, Stack, Text, Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useState } from "react";

import type { Failure } from "../api/failure";
import type { Entrance } from "../api/session";
import { FailureNotice } from "../parts/Notices";

/** Takes an API key. It goes into the client's closure and out of the field. */
export function SignIn({ enter, ended }: Entrance) {
  useDocumentTitle("Sign in · Better Compute");
  const [key, setKey] = useState("");
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  return (
    <Center mih="100vh" p="md" component="main">
      <Card withBorder w="100%" maw={420} padding="xl" radius="md">
        <form
          onSubmit={async (event) => {
            event.preventDefault();
            setBusy(true);
            const failed = await enter(key.trim());
            setBusy(false);
            setFailure(failed);
          }}
        >
          <Stack>
            <div>
              <Title order={1} size="h2">
                Better Compute
              </Title>
              <Text c="dimmed">Sites, their tokens and secrets</Text>
            </div>
            {ended && !failure && (
              <Alert color="yellow" role="alert">
                {ended}
              </Alert>
            )}
            <FailureNotice failure={failure} />
            <PasswordInput
              label="API key"
              description="Kept in this page's memory; a reload signs out"
              placeholder="bck_…"
              required
              autoFocus
              autoComplete="off"
              data-1p-ignore
              value={key}
              onChange={(event) => setKey(event.currentTarget.value)}
            />
            <Button type="submit" loading={busy}>
              Sign in
            </Button>
            <Text size="sm" c="dimmed">
              For developers: <Anchor href="/graphql" underline="always">GraphiQL</Anchor>,{" "}
              <Anchor href="/api/openapi.json" underline="always">OpenAPI</Anchor>
            </Text>
          </Stack>
        </form>
      </Card>
    </Center>
  );
}
