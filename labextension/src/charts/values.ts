/** The values of a chart at one x, as they stand beside the cursor. */

import { cssColour, dashOf, ILook } from './colours';

/** The values at one x. */
export interface IDescription {
  head: string;
  /** A text, or one with the line that it is about. */
  rows: (string | { text: string; line?: ILook })[];
}

/** More rows are set in columns. */
const MANY = 12;

/** Replaces what a node shows. */
export function showValues(node: HTMLElement, { head, rows }: IDescription): void {
  const title = document.createElement('strong');
  title.textContent = head;
  const list = document.createElement('div');
  list.append(...rows.map(rowOf));
  node.replaceChildren(title, list);
  node.classList.toggle('jdist-mod-many', rows.length > MANY);
}

/** A row of values, with a piece of the line that it is about. */
function rowOf(row: string | { text: string; line?: ILook }): HTMLElement {
  const { text, line } = typeof row === 'string' ? { text: row, line: undefined } : row;
  const node = Object.assign(document.createElement('div'), { textContent: text });
  if (line) {
    node.prepend(swatch(line), ' ');
  }
  return node;
}

/** A piece of a line, as in a legend. */
function swatch(look: ILook): SVGElement {
  const [svg, line] = ['svg', 'line'].map(name => document.createElementNS('http://www.w3.org/2000/svg', name));
  svg.setAttribute('class', 'jdist-Swatch');
  svg.setAttribute('aria-hidden', 'true');
  Object.entries({ x1: '0', x2: '100%', y1: '50%', y2: '50%' }).forEach(each => line.setAttribute(...each));
  line.style.stroke = cssColour(look);
  line.style.strokeDasharray = dashOf(look).join(' ') || 'none';
  svg.append(line);
  return svg;
}
