import { Alert, Button, Code, CopyButton, Group, Modal, NumberInput, Select, Stack, Text, Textarea } from "@mantine/core";
import { useEffect, useState } from "react";

import { CREATE_SITE_TOKEN } from "../api/documents";
import type { Failure } from "../api/failure";
import { useMutate } from "../api/mutate";
import { FailureNotice } from "./Notices";

const LIFETIMES = [
  { value: "600", label: "10 minutes" },
  { value: "3600", label: "1 hour" },
  { value: "28800", label: "8 hours" },
  { value: "86400", label: "24 hours (the longest)" },
];

/** The dialog that mints a token and then shows its bearer until it is closed. Only its state holds the bearer. */
export function MintToken(props: { tenantId: string; siteId: string; onClose: () => void; onMinted: () => void }) {
  const mutate = useMutate();
  const [ttl, setTtl] = useState("3600");
  const [maxUses, setMaxUses] = useState<number | string>(1);
  const [networks, setNetworks] = useState("");
  const [idempotencyKey] = useState(() => crypto.randomUUID());
  const [bearer, setBearer] = useState<string | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [busy, setBusy] = useState(false);
  const [lost, setLost] = useState(false);

  async function mint() {
    setBusy(true);
    const { tenantId, siteId } = props;
    const allowedCidrs = networks.split(/[\s,]+/).filter((network) => network !== "");
    const outcome = await mutate(CREATE_SITE_TOKEN, {
      input: {
        tenantId,
        siteId,
        ttlSeconds: Number(ttl),
        maxUses: Number(maxUses),
        idempotencyKey,
        ...(allowedCidrs.length > 0 && { allowedCidrs }),
      },
    });
    setBusy(false);
    setFailure(outcome.failure);
    if (!outcome.data) return;
    const { token } = outcome.data.createSiteToken;
    if (token == null) setLost(true);
    else setBearer(token);
    props.onMinted();
  }

  if (bearer !== null) return <Bearer bearer={bearer} onClose={props.onClose} />;
  return (
    <Modal opened onClose={props.onClose} title="Mint a site token">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void mint();
        }}
      >
        <Stack>
          <Text size="sm">
            Whoever has the token can enrol agents on this site until it expires or was used as often as it may be.
          </Text>
          <FailureNotice failure={failure} />
          {lost && (
            <Alert color="red" role="alert">
              The token was minted, but the answer that showed it got lost. Close this, revoke the newest token of the
              list, and mint another.
            </Alert>
          )}
          <Select
            label="Valid for"
            data={LIFETIMES}
            value={ttl}
            allowDeselect={false}
            onChange={(value) => setTtl(value ?? "3600")}
          />
          <NumberInput label="Uses" description="1 to 16" min={1} max={16} value={maxUses} onChange={setMaxUses} />
          <Textarea
            label="Networks"
            description="From where agents may enrol, one a line, such as 10.1.0.0/16; empty: from anywhere"
            autosize
            minRows={1}
            maxRows={8}
            spellCheck={false}
            value={networks}
            error={Object.entries(failure?.fields ?? {}).find(([path]) => path.startsWith("allowedCidrs"))?.[1]}
            onChange={(event) => setNetworks(event.currentTarget.value)}
          />
          <Group justify="flex-end">
            <Button variant="default" onClick={props.onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={busy} data-autofocus>
              Mint
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function Bearer({ bearer, onClose }: { bearer: string; onClose: () => void }) {
  const [copied, setCopied] = useState(false);
  const [leaving, setLeaving] = useState(false);
  const join = `bcd site join --server ${location.origin} --token-file - --state-dir /var/lib/bcd`;
  useEffect(() => {
    // Makes the browser ask before it leaves the page, because the token would be lost.
    const warn = (event: BeforeUnloadEvent) => event.preventDefault();
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, []);
  const close = () => (copied || leaving ? onClose() : setLeaving(true));
  return (
    <Modal opened onClose={close} title="Your site token" closeOnClickOutside={false} size="lg">
      <Stack>
        <Alert color="yellow" title="Shown once">
          Copy it now. It cannot be shown again; if it is lost, revoke it and mint another.
        </Alert>
        <Code block data-testid="bearer" style={{ overflowWrap: "anywhere", whiteSpace: "pre-wrap" }}>
          {bearer}
        </Code>
        <CopyButton value={bearer}>
          {({ copied: now, copy }) => (
            <Button
              data-autofocus
              onClick={() => {
                copy();
                setCopied(true);
              }}
            >
              {now ? "Copied" : "Copy token"}
            </Button>
          )}
        </CopyButton>
        <Text size="sm">On the machine of the site, then paste the token and end with Ctrl-D:</Text>
        <Code block style={{ overflowWrap: "anywhere", whiteSpace: "pre-wrap" }}>
          {join}
        </Code>
        {leaving && (
          <Alert color="red" role="alert">
            The token was not copied. Close once more to leave it behind.
          </Alert>
        )}
        <Group justify="flex-end">
          <Button variant="default" onClick={close}>
            Close
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
