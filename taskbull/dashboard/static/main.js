// Pages work without any of this: it keeps them up to date, asks in place, and listens to keys.
import { startTimes } from "./times.js";
import { startLive } from "./live.js";
import { startDialogs } from "./dialogs.js";
import { startKeys } from "./keys.js";
import { startSelect } from "./select.js";
import { startCharts } from "./charts.js";

startTimes();
startLive();
startDialogs();
startKeys();
startSelect();
startCharts();
