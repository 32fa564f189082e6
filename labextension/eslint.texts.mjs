// Texts that are shown go through trans.__, _n or _p, and are literals there, since they are extracted from the sources.

// Two letters: no sign, unit or number.
const WORD = '/[A-Za-z]{2}/';
const ATTRIBUTES = '/^(title|alt|placeholder|label|aria-label|aria-description)$/';
const PROPERTIES = '/^(textContent|innerText|title|alt|placeholder|label|caption|ariaLabel)$/';

const SHOWN = [
  `JSXText[value=${WORD}]`,
  `JSXElement > JSXExpressionContainer > Literal[value=${WORD}]`,
  `JSXElement > JSXExpressionContainer > TemplateLiteral > TemplateElement[value.raw=${WORD}]`,
  `JSXAttribute[name.name=${ATTRIBUTES}] > Literal[value=${WORD}]`,
  `JSXAttribute[name.name=${ATTRIBUTES}] TemplateElement[value.raw=${WORD}]`,
  `AssignmentExpression[left.property.name=${PROPERTIES}] > Literal.right[value=${WORD}]`,
  `AssignmentExpression[left.property.name=${PROPERTIES}] > TemplateLiteral.right > TemplateElement[value.raw=${WORD}]`,
  `CallExpression[callee.property.name="setAttribute"][arguments.0.value=${ATTRIBUTES}] > Literal.arguments:nth-child(2)[value=${WORD}]`,
  `Property[key.name=/^(label|caption|title|placeholder)$/] > Literal.value[value=${WORD}]`
];

// What the translations' extractor knows: jupyterlab-translate, which language packs are made with.
const EXTRACTED = [
  '[callee.object.name="trans"]',
  '[callee.object.object.type="ThisExpression"][callee.object.property.name=/^_?trans$/]',
  '[callee.object.object.name="props"][callee.object.property.name="trans"]',
  '[callee.object.object.object.type="ThisExpression"][callee.object.object.property.name="props"][callee.object.property.name="trans"]'
];
const TRANSLATION = 'CallExpression[callee.property.name=/^(__|_n|_p|_np)$/]';
// The number of texts that each function takes.
const TEXTS = ['/^(__|_n|_p|_np)$/', '/^(_n|_p|_np)$/', '/^_np$/'].map(
  (name, index) => `CallExpression[callee.property.name=${name}][arguments.${index}.type!="Literal"]`
);

export const noUntranslatedTexts = [
  'error',
  ...SHOWN.map(selector => ({ selector, message: 'A text that is shown has to be translated: trans.__(…)' })),
  ...TEXTS.map(selector => ({ selector, message: 'The text to translate has to be a literal.' })),
  {
    selector: `${TRANSLATION}:not(${EXTRACTED.join(', ')})`,
    message: 'Write trans.__, this.trans.__, this._trans.__ or props.trans.__: no other texts are extracted.'
  }
];
