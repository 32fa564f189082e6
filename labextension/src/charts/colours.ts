/** The colours of charts, taken from JupyterLab's theme where a chart is. */

/**
 * How a line looks: `main`, `faint` (thin, in the background), `marked` (dashed, in the colour of errors), or `own`: one
 * of several lines, which differ by colour and dashes.
 */
export type Role = 'main' | 'faint' | 'marked' | 'own';

/** The look of a line; `order` is the number of one of the role `own`. */
export interface ILook {
  role: Role;
  order?: number;
}

type Name = 'main' | 'marked' | 'text';
type Variable = [string, string];

const VARIABLES: Record<Name, Variable> = {
  main: ['--jp-brand-color1', '#1976d2'],
  marked: ['--jp-error-color1', '#d32f2f'],
  text: ['--jp-ui-font-color1', '#222']
};

/** Those of lines of the role `own`, in their order, with dashes that tell them apart without colours. */
const OWN: { variable: Variable; dash: number[] }[] = [
  { variable: ['--jp-brand-color1', '#1976d2'], dash: [] },
  { variable: ['--jp-warn-color1', '#f57c00'], dash: [6, 3] },
  { variable: ['--jp-mirror-editor-operator-color', '#7800c2'], dash: [2, 2] },
  { variable: ['--jp-success-color1', '#388e3c'], dash: [9, 3, 2, 3] },
  { variable: ['--jp-icon-contrast-color2', '#d81b60'], dash: [] },
  { variable: ['--jp-info-color1', '#0097a7'], dash: [6, 3] },
  { variable: ['--jp-ui-font-color2', '#757575'], dash: [2, 2] },
  { variable: ['--jp-mirror-editor-string-color', '#ba2121'], dash: [9, 3, 2, 3] },
  { variable: ['--jp-mirror-editor-bracket-color', '#999977'], dash: [] }
];

/** How much of an own colour there is, in percent; the rest is that of text, for the contrast. */
const OWN_SHARE = 85;
// Percent.
const BAND = 22;
const SHADE = 10;
const GRID = 12;
const MARK = 50;
const FAINT = 42;
/** Of more than so many faint lines, each is fainter. */
const FEW = 6;

/** The colour that applies to a node of the page. */
export function colourOf(node: HTMLElement, name: Name): string {
  return valueOf(node, VARIABLES[name]);
}

/** The colour of lines, as a veil. */
export function bandColour(node: HTMLElement): string {
  return veil(colourOf(node, 'main'), BAND);
}

/** The colour behind a part of the chart. */
export function shadeColour(node: HTMLElement): string {
  return veil(colourOf(node, 'text'), SHADE);
}

/** The colour of a thin line across the chart. */
export function markColour(node: HTMLElement): string {
  return veil(colourOf(node, 'text'), MARK);
}

/** The colour of the lines of a grid, which are to be seen in every theme, and no more. */
export function gridColour(node: HTMLElement): string {
  return veil(colourOf(node, 'text'), GRID);
}

/** The colour of a line among so many. */
export function lineColour(node: HTMLElement, { role, order = 0 }: ILook, count = 1): string {
  if (role === 'own') {
    return mixed(valueOf(node, ownOf(order).variable), colourOf(node, 'text'));
  }
  if (role === 'faint') {
    const share = Math.max(0.15, Math.min(1, FEW / count));
    return veil(colourOf(node, 'text'), FAINT * share);
  }
  return colourOf(node, role);
}

/** The dashes of a line; none if it is solid. */
export function dashOf({ role, order = 0 }: ILook): number[] {
  return role === 'marked' ? [5, 3] : role === 'own' ? ownOf(order).dash : [];
}

/** The colour of a line for a style sheet. */
export function cssColour({ role, order = 0 }: ILook): string {
  const css = (variable: Variable): string => `var(${variable.join(', ')})`;
  if (role === 'own') {
    return mixed(css(ownOf(order).variable), css(VARIABLES.text));
  }
  return role === 'faint' ? veil(css(VARIABLES.text), FAINT) : css(VARIABLES[role]);
}

function ownOf(order: number): (typeof OWN)[number] {
  return OWN[order % OWN.length];
}

function valueOf(node: HTMLElement, [name, other]: Variable): string {
  return getComputedStyle(node).getPropertyValue(name).trim() || other;
}

function veil(colour: string, percent: number): string {
  return `color-mix(in srgb, ${colour} ${percent}%, transparent)`;
}

function mixed(colour: string, text: string): string {
  return `color-mix(in srgb, ${colour} ${OWN_SHARE}%, ${text})`;
}
