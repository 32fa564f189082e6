/** The sections of the panel: views of the clusters that are drawn again when these change, while they are visible. */

import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget, Toolbar } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Message } from '@lumino/messaging';
import * as React from 'react';

import { IState } from '../states';
import { IClusters, IPreferences } from '../tokens';
import { Selection } from './selection';

/** What all sections share. */
export interface IContext {
  clusters: IClusters;
  selection: Selection;
  commands: CommandRegistry;
  trans: TranslationBundle;
  preferences: IPreferences;
}

export abstract class Section extends ReactWidget implements Toolbar.IWidgetToolbar {
  constructor(
    protected readonly context: IContext,
    name: string,
    label: string
  ) {
    super();
    this.id = `jdist-section-${name}`; // referred to by the aria-controls of its title
    this.addClass('jdist-section');
    this.addClass(`jdist-${name}`);
    this.title.label = label;
    this.title.caption = label;
    context.clusters.changed.connect(this._onChanged, this);
    context.selection.changed.connect(this._onChanged, this);
    context.preferences.changed.connect(this._onPreferences, this);
  }

  /** The height in pixels at which nothing has to be scrolled. */
  get neededHeight(): number {
    return this.node.firstElementChild?.scrollHeight ?? 0;
  }

  /** The buttons in the section's title. */
  readonly toolbar = new Toolbar();

  dispose(): void {
    window.clearInterval(this._clock);
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._startClock();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._startClock();
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

  private _onPreferences(): void {
    if (this.isVisible) {
      this._startClock();
    }
  }

  /** Draws times again every `refreshSeconds`. */
  private _startClock(): void {
    window.clearInterval(this._clock);
    this._clock = window.setInterval(() => {
      if (this.isVisible && this.context.clusters.current) {
        this.update();
      }
    }, this.context.preferences.values.refreshSeconds * 1000);
    this.update();
  }

  private _clock = 0;
}

/** A state: its sign and its label. */
export function State({ state: { sign, label, tone } }: { state: IState }): JSX.Element {
  return (
    <span className={`jdist-state jdist-mod-${tone}`}>
      <span className="jdist-sign" aria-hidden="true">
        {sign}
      </span>
      <span>{label}</span>
    </span>
  );
}
