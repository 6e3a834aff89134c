import { Badge, Group } from "@mantine/core";

/** Shows a site's labels. */
export function Labels({ labels }: { labels: { key: string; value: string }[] }) {
  return (
    <Group gap={4}>
      {labels.map(({ key, value }) => (
        <Badge key={key} variant="default" tt="none" fw={400}>
          {key}={value}
        </Badge>
      ))}
    </Group>
  );
}
