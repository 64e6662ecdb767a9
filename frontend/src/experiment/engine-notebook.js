// The engine in a notebook: the kernel. Controls are traits of the widget's model, and so is the chart.

export function notebookEngine(model) {
  let listener = () => {};
  let waiting = null;
  let asked = 0;
  const view = Math.random().toString(36).slice(2); // one model may be shown twice

  function onChart() {
    const chart = model.get("chart");
    if (waiting && chart.asked === waiting.number) {
      const { answer } = waiting;
      waiting = null;
      answer(chart);
    } else if (!waiting) {
      listener(chart); // the reader's code, or another widget linked to this one, has set a trait
    }
  }
  function onMessage(message) {
    if (!waiting || message.asked !== waiting.number) return;
    const { answer } = waiting;
    waiting = null;
    answer({ error: message.error });
  }
  model.on("change:chart", onChart);
  model.on("msg:custom", onMessage);

  return {
    compute(values) {
      waiting?.answer(null);
      return new Promise((answer) => {
        asked += 1;
        waiting = { number: `${view}.${asked}`, answer };
        model.send({ values, asked: waiting.number });
      });
    },
    onAnswer(callback) {
      listener = callback;
      // What the kernel has computed already. Asking for it would send old values back to the traits.
      callback(model.get("chart"));
    },
    stop() {
      model.off("change:chart", onChart);
      model.off("msg:custom", onMessage);
    },
  };
}
