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

export const noUntranslatedTexts = [
  'error',
  ...SHOWN.map(selector => ({ selector, message: 'A text that is shown has to be translated: trans.__(…)' })),
  {
    selector:
      'CallExpression[callee.object.name=/trans$/][callee.property.name="__"] > :not(Literal):first-child.arguments',
    message: 'The text to translate has to be a literal.'
  },
  {
    selector:
      'CallExpression[callee.object.property.name=/trans$/][callee.property.name="__"] > :not(Literal):first-child.arguments',
    message: 'The text to translate has to be a literal.'
  }
];
