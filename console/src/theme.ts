import { type CSSVariablesResolver, createTheme, Modal, TableScrollContainer } from "@mantine/core";

export const theme = createTheme({
  primaryColor: "indigo",
  primaryShade: { light: 7, dark: 8 },
  defaultRadius: "md",
  autoContrast: true,
  components: {
    Modal: Modal.extend({ defaultProps: { closeButtonProps: { "aria-label": "Close" } } }),
    // Makes the scroll area focusable, so that it can be scrolled by keyboard.
    TableScrollContainer: TableScrollContainer.extend({
      defaultProps: { scrollAreaProps: { viewportProps: { tabIndex: 0 } } },
    }),
  },
});

/** Replaces Mantine's softer colours by ones that have the contrast of 4.5 to 1 that WCAG 2 AA requires of text. */
export const contrast: CSSVariablesResolver = () => ({
  variables: {},
  light: {
    "--mantine-color-dimmed": "var(--mantine-color-gray-7)",
    "--mantine-color-placeholder": "var(--mantine-color-gray-7)",
    "--mantine-color-error": "var(--mantine-color-red-9)",
    "--mantine-color-red-text": "var(--mantine-color-red-9)",
    "--mantine-color-blue-light-color": "#134b7f",
    "--mantine-color-grape-light-color": "#742b84",
    "--mantine-color-gray-light-color": "#343a40",
    "--mantine-color-green-light-color": "#1b5c2a",
    "--mantine-color-red-light-color": "#9c1f1f",
    "--mantine-color-teal-light-color": "#055740",
    "--mantine-color-yellow-light-color": "#6e4200",
  },
  dark: {
    "--mantine-color-dimmed": "var(--mantine-color-dark-1)",
    "--mantine-color-placeholder": "var(--mantine-color-dark-1)",
    "--mantine-color-error": "var(--mantine-color-red-4)",
    "--mantine-color-red-text": "var(--mantine-color-red-4)",
  },
});
