// The parts of a window, in the order in which charts and tables show them.

export const PARTS = [
  ["system", "System and tools", (context) => context.system + context.tools],
  ["pinned", "Reminders and pins", (context) => context.reminders + context.pins],
  ["history", "History", (context) => context.history],
  ["results", "Tool results", (context) => context.tool_results],
];
