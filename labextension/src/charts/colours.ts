/** The colours of charts, taken from JupyterLab's theme where a chart is. */

/** How a line looks. */
export type Role = 'main' | 'faint' | 'marked';

const VARIABLES: Record<Role | 'text' | 'grid', [string, string]> = {
  main: ['--jp-brand-color1', '#1976d2'],
  faint: ['--jp-ui-font-color3', '#9e9e9e'],
  marked: ['--jp-error-color1', '#d32f2f'],
  text: ['--jp-ui-font-color1', '#222'],
  grid: ['--jp-border-color2', '#ddd']
};

const BAND = 22; // Percent.
/** So many faint lines are as dark as the theme has them; of more, each is fainter. */
const FEW = 6;

/** The colour that applies to a node of the page. */
export function colourOf(node: HTMLElement, role: keyof typeof VARIABLES): string {
  const [name, other] = VARIABLES[role];
  return getComputedStyle(node).getPropertyValue(name).trim() || other;
}

/** The colour of lines, as a veil. */
export function bandColour(node: HTMLElement): string {
  return `color-mix(in srgb, ${colourOf(node, 'main')} ${BAND}%, transparent)`;
}

/** The colour of one of so many faint lines, which may cover each other. */
export function faintColour(node: HTMLElement, count: number): string {
  const share = Math.max(15, Math.min(100, (100 * FEW) / count));
  return `color-mix(in srgb, ${colourOf(node, 'faint')} ${share}%, transparent)`;
}
