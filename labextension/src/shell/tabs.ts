/** Where widgets with a title of their own are shown. */

import { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import { MessageLoop } from '@lumino/messaging';
import { SplitPanel, TabPanel, Widget } from '@lumino/widgets';

/** The share of the height for the area below the notebook. */
const SHARE = 0.4;
/** A height in pixels in which only a title can be seen. */
const LOW = 100;

/** The main area of JupyterLab; in Notebook 7, whose main area holds only the notebook, the area below it. */
export class Tabs {
  constructor(
    private readonly _shell: JupyterFrontEnd.IShell,
    private readonly _lab: ILabShell | null
  ) {}

  add(widget: Widget, options?: { mode: 'split-bottom' }): void {
    this._shell.add(widget, this._lab ? 'main' : 'down', options);
  }

  /** Brings a widget to the front that has been added before. */
  activate(widget: Widget): void {
    this._shell.activateById(widget.id);
    const panel = widget.parent?.parent;
    if (panel instanceof TabPanel) {
      panel.currentWidget = widget; // the shell of Notebook 7 does neither of the two
      ensureShare(panel, SHARE);
    }
  }
}

/** Gives a part of a split panel that is nearly closed a share of the height. */
function ensureShare(part: Widget, share: number): void {
  MessageLoop.flush(); // heights are right only after the layout has been updated
  const split = part.parent;
  if (split instanceof SplitPanel && part.node.clientHeight < LOW) {
    const others = (1 - share) / (split.widgets.filter(each => !each.isHidden).length - 1 || 1);
    split.setRelativeSizes(split.widgets.map(each => (each === part ? share : each.isHidden ? 0 : others)));
  }
}
