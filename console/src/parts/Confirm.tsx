import { Button, Group, Modal, Stack } from "@mantine/core";
import { type ReactNode, useState } from "react";

import type { Failure } from "../api/failure";
import { FailureNotice } from "./Notices";

/** Asks before an action that cannot be undone. `act` resolves to a failure to show, or to null on success. */
export function Confirm(props: {
  title: string;
  verb: string;
  children: ReactNode;
  act: () => Promise<Failure | null>;
  onClose: () => void;
}) {
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<Failure | null>(null);
  return (
    <Modal opened onClose={props.onClose} title={props.title}>
      <Stack>
        <div>{props.children}</div>
        <FailureNotice failure={failure} />
        <Group justify="flex-end">
          <Button variant="default" onClick={props.onClose} data-autofocus>
            Cancel
          </Button>
          <Button
            color="red.9"
            loading={busy}
            onClick={async () => {
              setBusy(true);
              const failed = await props.act();
              setBusy(false);
              setFailure(failed);
              if (!failed) props.onClose();
            }}
          >
            {props.verb}
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
