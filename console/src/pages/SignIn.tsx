import { Alert, Anchor, Button, Card, Center, Divider, PasswordInput, Stack, Text, Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import { useEffect, useState } from "react";

import type { Failure } from "../api/failure";
import { hostOf, type Issuer, issuer as trustedIssuer, leaveFor, type Login, returned } from "../api/login";
import type { Entrance } from "../api/session";
import { FailureNotice } from "../parts/Notices";

/** Shown if the issuer did not complete the login, for example because the person cancelled it. */
const NOT_COMPLETED: Failure = {
  code: "SIGN_IN",
  message: "The sign-in was not completed. Try again, or use an API key.",
  fields: {},
};

/** Describes a login that the issuer accepted but that no administrator has added here. */
const unknownLogin = ({ subject }: Login): Failure => ({
  code: "UNAUTHENTICATED",
  message: `You are signed in, but have no access here yet. Ask an administrator to add the login of subject ${subject}.`,
  fields: {},
});

/** The sign-in page: takes an API key, or sends people to the issuer. The key stays in the client's closure only. */
export function SignIn({ enter, ended }: Entrance) {
  useDocumentTitle("Sign in · Better Compute");
  const [key, setKey] = useState("");
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const [issuer, setIssuer] = useState<Issuer | null>(null);
  useEffect(() => void trustedIssuer().then(setIssuer), []);
  useEffect(() => {
    const complete = async () => {
      const login = await returned();
      const failed = login && (await enter(login));
      if (failed) setFailure(failed.code === "UNAUTHENTICATED" ? unknownLogin(login) : failed);
    };
    complete().catch(() => setFailure(NOT_COMPLETED));
  }, []);
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
            {issuer && (
              <>
                <Divider label="or" />
                <Button
                  variant="default"
                  onClick={() => leaveFor(issuer).catch(() => setFailure(NOT_COMPLETED))}
                >
                  Sign in with {hostOf(issuer)}
                </Button>
              </>
            )}
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
