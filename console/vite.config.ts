import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Two pages: the console at "/", and GraphiQL, a chunk of its own, at "/graphql". Their assets stand below "/assets".
export default defineConfig({
  base: "/",
  plugins: [react()],
  worker: { format: "es" },
  build: {
    target: "es2022",
    chunkSizeWarningLimit: 5000,
    modulePreload: { polyfill: false },
    rollupOptions: {
      // Directives of React's compiler mean nothing once it has run.
      onwarn: (warning, warn) => warning.code !== "MODULE_LEVEL_DIRECTIVE" && warn(warning),
      input: { index: "index.html", graphiql: "graphiql.html" },
    },
  },
});
