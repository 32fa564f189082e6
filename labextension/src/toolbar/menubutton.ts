/** A button in a notebook's toolbar that shows a state and opens a menu. */

import { caretDownEmptyIcon, LabIcon, MenuSvg } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Menu, Widget } from '@lumino/widgets';

import { Tone } from '../states';

/** What a button shows. */
export interface IShown {
  sign?: string;
  tone?: Tone;
  text: string;
  /** Its tooltip and its name for screen readers. */
  about: string;
  /** It opens no menu; `about` says why. */
  isDisabled?: boolean;
}

export class MenuButton extends Widget {
  constructor(
    private readonly _commands: CommandRegistry,
    private readonly _fill: (menu: Menu) => void,
    icon?: LabIcon
  ) {
    super();
    this.addClass('jdist-MenuButton');
    this._button.type = 'button';
    this._button.setAttribute('aria-haspopup', 'menu');
    this._sign.className = 'jdist-sign';
    this._text.className = 'jdist-text';
    this._sign.setAttribute('aria-hidden', 'true');
    icon?.element({ container: this._button.appendChild(document.createElement('span')), tag: 'span' });
    this._button.append(this._sign, this._text);
    caretDownEmptyIcon.element({ container: this._button.appendChild(document.createElement('span')) });
    this._button.addEventListener('click', () => this._open());
    this.node.append(this._button);
  }

  present(shown: IShown): void {
    const { _button: button, _sign: sign, _text: text } = this;
    sign.textContent = shown.sign ?? '';
    sign.hidden = !shown.sign;
    text.textContent = shown.text;
    button.className = shown.tone ? `jdist-mod-${shown.tone}` : '';
    button.title = shown.about;
    button.setAttribute('aria-label', shown.about);
    button.setAttribute('aria-disabled', String(!!shown.isDisabled));
  }

  private _open(): void {
    const button = this._button;
    if (button.getAttribute('aria-disabled') === 'true') {
      return;
    }
    const menu = new MenuSvg({ commands: this._commands });
    menu.node.setAttribute('aria-label', button.title);
    this._fill(menu);
    button.setAttribute('aria-expanded', 'true');
    menu.aboutToClose.connect(() => {
      button.setAttribute('aria-expanded', 'false');
      requestAnimationFrame(() => {
        if (document.activeElement === document.body) {
          button.focus(); // unless the chosen command has put the focus elsewhere
        }
        menu.dispose();
      });
    });
    const { left, bottom } = button.getBoundingClientRect();
    menu.open(left, bottom);
  }

  private readonly _button = document.createElement('button');
  private readonly _sign = document.createElement('span');
  private readonly _text = document.createElement('span');
}
