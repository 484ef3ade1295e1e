// Keeps what judges tests as it was, in every Node that a test command starts.
//
// Loaded before anything of the project. The functions of assert and of the test runner cannot be replaced any more; and a
// program in which an error was not caught, or which was to end with a code other than 0, does not end with 0, whatever
// listens or takes the place of what ends it.
'use strict';
for (const name of ['assert', 'assert/strict', 'node:test']) {
  let found;
  try {
    found = require(name);
  } catch {
    continue;
  }
  for (const each of [found, found.strict, found.AssertionError, found.AssertionError && found.AssertionError.prototype]) {
    if (each) Object.freeze(each);
  }
}

let failure = 0;
const { apply, defineProperty } = Reflect;

// What others put into the place of a function is called by `around`, which stays in it.
function surround(name, around) {
  const ours = new Set();
  let outer;
  const put = (inner) => {
    if (ours.has(inner)) {
      outer = inner;
      return;
    }
    outer = function (...given) {
      return around(this, inner, given);
    };
    ours.add(outer);
  };
  if (typeof process[name] === 'function') {
    put(process[name]);
    defineProperty(process, name, { get: () => outer, set: put, enumerable: true, configurable: false });
  }
}

surround('emit', (self, inner, given) => {
  const [event, code] = given;
  if (event === 'uncaughtExceptionMonitor') failure ||= 1;
  if (event === 'beforeExit' || event === 'exit') failure ||= process.exitCode || code || 0;
  const answer = apply(inner, self, given);
  if (event === 'exit' && failure && !process.exitCode) process.exitCode = failure;
  return answer;
});
surround('exit', (self, inner, given) => {
  failure ||= given[0] || process.exitCode || 0;
  return apply(inner, self, given);
});
surround('reallyExit', (self, inner, given) => apply(inner, self, [given[0] || failure, ...given.slice(1)]));
