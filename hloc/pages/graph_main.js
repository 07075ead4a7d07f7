// Starts the page of one graph.
"use strict";
hlocGraph(document.querySelector("main"), JSON.parse(document.getElementById("graph").textContent), {whole: true});
document.body.dataset.ready = Math.round(performance.now());
