const config = {
  view: {stroke: null},
  axis: {labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", gridColor: "#ececec",
    labelFlush: false, labelSeparation: 4},
  axisX: {tickCount: innerWidth < 600 ? 5 : 10, labelSeparation: 10},
  legend: {labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 0,
    symbolOpacity: 1, symbolStrokeWidth: 2.5, ...(innerWidth < 600 && {columns: 1})},
};
for (const [name, chart] of Object.entries(charts))
  vegaEmbed("#" + name, {width: "container", height: 300, config, datasets, ...chart},
    {mode: "vega-lite", actions: {export: true, source: false, compiled: false, editor: false}})
    .then(() => document.querySelector("#" + name + " summary")?.setAttribute("aria-label", "Save the chart"));
