// Everything the front end itself says; the experiments' own words come from Python.

export const texts = {
  presets: "Presets",
  ownValues: "Values of your own.",
  reset: "Reset",
  copyLink: "Copy link",
  copyPython: "Copy Python",
  copied: "Copied.",
  notCopied: "The browser did not allow copying.",
  numbers: "Show the numbers",
  starting: "Starting the model…",
  failed: (reason) => `The model could not start (${reason}). The picture shows the values it was made with.`,
  typed: (label) => `${label}: type a value`,
  play: "Play",
  pause: "Pause",
  stepForward: "Step",
  stepBack: "Back",
  toStart: "Start",
};
