/** A section of the panel: a view of the clusters that is drawn again when they change, and only while it is seen. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, Toolbar } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Message } from '@lumino/messaging';

import { IClusters } from '../tokens';
import { Choice } from './choice';

/** What every section shows, and with what it acts. */
export interface IContext {
  clusters: IClusters;
  choice: Choice;
  commands: CommandRegistry;
  trans: TranslationBundle;
}

/** Milliseconds between two looks at the clock while something runs. */
const TICK = 1000;

export abstract class Section extends ReactWidget implements Toolbar.IWidgetToolbar {
  constructor(
    protected readonly context: IContext,
    name: string,
    label: string
  ) {
    super();
    this.id = `jdist-section-${name}`; // its title says that it controls it
    this.addClass('jdist-section');
    this.addClass(`jdist-${name}`);
    this.title.label = label;
    this.title.caption = label;
    context.clusters.changed.connect(this._onChanged, this);
    context.choice.changed.connect(this._onChanged, this);
  }

  /** In the section's title. */
  readonly toolbar = new Toolbar();

  dispose(): void {
    window.clearInterval(this._clock);
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._seen();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._seen();
  }

  protected onBeforeHide(message: Message): void {
    window.clearInterval(this._clock);
    super.onBeforeHide(message);
  }

  protected onBeforeDetach(message: Message): void {
    window.clearInterval(this._clock);
    super.onBeforeDetach(message);
  }

  private _onChanged(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  private _seen(): void {
    window.clearInterval(this._clock);
    this._clock = window.setInterval(() => {
      if (this.isVisible && this.context.clusters.current?.runs?.length) {
        this.update();
      }
    }, TICK);
    this.update();
  }

  private _clock = 0;
}
