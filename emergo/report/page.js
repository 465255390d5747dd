const config = {
  view: {stroke: null},
  axis: {labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", gridColor: "#ececec"},
  legend: {labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 0, ...(innerWidth < 600 && {columns: 1})},
};
for (const [name, chart] of Object.entries(charts))
  vegaEmbed("#" + name, {width: "container", height: 300, config, datasets, ...chart},
    {mode: "vega-lite", actions: {export: true, source: false, compiled: false, editor: false}});
