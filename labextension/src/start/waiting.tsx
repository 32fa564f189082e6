/** What the dialogs share that wait for nodes: of a cluster that is being started, or that are added to one. */

import { Dialog } from '@jupyterlab/apputils';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import * as React from 'react';

import { formatWholeSeconds } from '../format';
import { IClusters } from '../tokens';
import { IInstructions, JoinLine } from './joinline';

/** How far it is; `End` is how it has ended, empty while it goes on. */
export abstract class Waiting<End extends string> extends ReactWidget {
  constructor(
    protected readonly clusters: IClusters,
    protected readonly name: string,
    protected readonly trans: TranslationBundle
  ) {
    super();
    this.addClass('jdist-startprogress');
    clusters.changed.connect(this._onChanged, this);
  }

  /** It has ended. */
  get ended(): ISignal<this, End> {
    return this._ended;
  }

  /** How it has ended by now. */
  abstract get end(): End | '';

  dispose(): void {
    window.clearInterval(this._clock);
    Signal.clearData(this);
    super.dispose();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._clock = window.setInterval(() => this.update(), 1000);
    this._onChanged();
  }

  protected render(): JSX.Element {
    return (
      <>
        <p role="status" tabIndex={-1}>
          {this.text()}
        </p>
        {this._instructions ? <JoinLine {...this._instructions} trans={this.trans} /> : null}
        {this.numbers(formatWholeSeconds((Date.now() - this._startedAt) / 1000))}
      </>
    );
  }

  /** What is waited for. */
  protected abstract text(): string;

  /** How many have come, `waited` after the beginning. */
  protected abstract numbers(waited: string): JSX.Element;

  /** The number of the line that the user has to run now: each is asked for once. */
  protected abstract get lineNumber(): number;

  private async _askForInstructions(): Promise<void> {
    if (!this.clusters.get(this.name)?.has_instructions) {
      this._instructions = null;
      return;
    }
    if (this._askedFor === this.lineNumber) {
      return;
    }
    this._askedFor = this.lineNumber;
    try {
      this._instructions = await this.clusters.api.instructions(this.name);
      this.update();
    } catch (error) {
      console.warn(`jdist: ${this.name}:`, error); // the node may have come, or all may have ended
    }
  }

  private _onChanged(): void {
    void this._askForInstructions();
    this.update();
    const { end } = this;
    if (end && !this._hasEnded) {
      this._hasEnded = true;
      this._ended.emit(end);
    }
  }

  private _clock = 0;
  private _askedFor = -1;
  private _instructions: IInstructions | null = null;
  private _hasEnded = false;
  private _startedAt = Date.now();
  private _ended = new Signal<this, End>(this);
}

interface IWaitingTexts {
  title: string;
  /** What happens if the user waits no longer. */
  background: string;
  stop: string;
  stopCaption: string;
}

/** Shows a dialog until what is waited for has ended, or the user closes it; whether they want it to be stopped. */
export async function showWaiting<End extends string>(
  body: Waiting<End>,
  { title, background, stop, stopCaption }: IWaitingTexts,
  trans: TranslationBundle
): Promise<boolean> {
  const dialog = new WaitingDialog({
    title,
    body,
    hasClose: true,
    focusNodeSelector: '[role="status"]',
    buttons: [
      Dialog.cancelButton({ label: trans.__('Continue in background'), caption: background, actions: ['hide'] }),
      Dialog.warnButton({ label: stop, caption: stopCaption })
    ]
  });
  body.ended.connect(() => dialog.reject());
  const { button } = await dialog.launch();
  return !body.end && button.accept;
}

/** A dialog whose Enter presses the button that has the focus, and none otherwise. */
class WaitingDialog<T> extends Dialog<T> {
  /** The Enter that has sent the form may be pressed twice, or held: it neither stops anything nor hides it. */
  protected _evtKeydown(event: KeyboardEvent): void {
    if (event.key !== 'Enter') {
      super._evtKeydown(event);
    } else if (event.repeat || !(document.activeElement instanceof HTMLButtonElement)) {
      event.preventDefault();
      event.stopPropagation();
    }
  }
}
