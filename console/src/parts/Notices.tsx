import { Alert, Button, Center, Code, Loader, Stack, Text } from "@mantine/core";

import type { Failure } from "../api/failure";

/** An error: what happened, how to mend it, and the request id where the log has more. */
export function FailureNotice({ failure, onRetry }: { failure: Failure | null; onRetry?: (() => void) | undefined }) {
  if (!failure) return null;
  const denied = failure.code === "PERMISSION_DENIED";
  const stray = Object.entries(failure.fields);
  return (
    <Alert color={denied ? "yellow" : "red"} title={failure.code.replaceAll("_", " ").toLowerCase()} role="alert">
      <Stack gap="xs">
        <Text size="sm">{failure.message}</Text>
        {stray.map(([path, message]) => (
          <Text size="sm" key={path}>
            <Code>{path}</Code> {message}
          </Text>
        ))}
        {failure.requestId && (
          <Text size="xs">
            Request <Code>{failure.requestId}</Code>
          </Text>
        )}
        {onRetry && (
          <Button size="xs" variant="default" onClick={onRetry} w="fit-content">
            Try again
          </Button>
        )}
      </Stack>
    </Alert>
  );
}

/** While a page's first data is on its way. */
export function Loading({ what }: { what: string }) {
  return (
    <Center py="xl" role="status" aria-label={`Loading ${what}`}>
      <Loader />
    </Center>
  );
}

/** A list with nothing in it, and what to do about it. */
export function Empty({ children }: { children: React.ReactNode }) {
  return (
    <Center py="xl">
      <Text c="dimmed" ta="center">
        {children}
      </Text>
    </Center>
  );
}
