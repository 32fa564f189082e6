/** Runs commands in terminals of the Jupyter server, each in a tab of its own. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { Terminal } from '@jupyterlab/services';

/** JupyterLab's command that shows the terminal called `name`. */
const OPEN = 'terminal:open';
/** Milliseconds within which a shell must show its prompt. */
const PROMPT_TIMEOUT = 30000;

export class Terminals {
  constructor(private readonly _app: JupyterFrontEnd) {}

  /** Whether the server has terminals and this page can show them. */
  get areAvailable(): boolean {
    return this._app.serviceManager.terminals.isAvailable() && this._app.commands.hasCommand(OPEN);
  }

  /**
   * Opens a terminal called `name`, with a number if that is taken, and types the command as a person would: it is sent
   * over the terminal's own connection. Rejects if the server refuses, or if the shell shows no prompt in time.
   */
  async run(name: string, command: string): Promise<void> {
    const { terminals } = this._app.serviceManager;
    await terminals.refreshRunning();
    const taken = [...terminals.running()].map(each => each.name);
    const session = await terminals.startNew({ name: freeName(name, taken) });
    try {
      await Promise.all([firstOutput(session), this._app.commands.execute(OPEN, { name: session.name })]);
      session.send({ type: 'stdin', content: [`${command}\r`] });
    } finally {
      session.dispose(); // the tab has a connection of its own
    }
  }
}

/** Resolves when the shell has written something; what is typed before that is shown twice. */
function firstOutput(session: Terminal.ITerminalConnection): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('the terminal shows no prompt')), PROMPT_TIMEOUT);
    session.messageReceived.connect((_, message) => {
      if (message.type === 'stdout') {
        clearTimeout(timer);
        resolve();
      }
    });
  });
}

/** The name without characters that a terminal's name cannot have, and with a number if it is taken. */
function freeName(name: string, taken: string[]): string {
  const plain = name.replace(/\W+/g, '_');
  let found = plain;
  for (let i = 2; taken.includes(found); i++) {
    found = `${plain}_${i}`;
  }
  return found;
}
