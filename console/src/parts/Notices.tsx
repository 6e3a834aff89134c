import { Alert, Button, Center, Code, Loader, Stack, Text } from "@mantine/core";

import type { Failure } from "../api/failure";

/** Shows a failure: what happened, how to fix it, and the request id under which the server's log has more. */
export function FailureNotice({ failure, onRetry }: { failure: Failure | null; onRetry?: (() => void) | undefined }) {
  if (!failure) return null;
  const denied = failure.code === "PERMISSION_DENIED";
  const fieldErrors = Object.entries(failure.fields);
  return (
    <Alert color={denied ? "yellow" : "red"} title={failure.code.replaceAll("_", " ").toLowerCase()} role="alert">
      <Stack gap="xs">
        <Text size="sm">{failure.message}</Text>
        {fieldErrors.map(([path, message]) => (
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

/** Shows a loader while a page's first data is loading. */
export function Loading({ what }: { what: string }) {
  return (
    <Center py="xl" role="status" aria-label={`Loading ${what}`}>
      <Loader />
    </Center>
  );
}

/** Says that a list is empty, and what to do about it. */
export function Empty({ children }: { children: React.ReactNode }) {
  return (
    <Center py="xl">
      <Text c="dimmed" ta="center">
        {children}
      </Text>
    </Center>
  );
}
