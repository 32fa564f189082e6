/** The icon of jdist. */

import { LabIcon } from '@jupyterlab/ui-components';

import ranks from '../../style/icons/ranks.svg';

/** Four ranks, one of which is different. */
export const ranksIcon = new LabIcon({ name: 'jdist:ranks', svgstr: ranks });
