"""The style sheet of the report, for light and dark mode, wide and narrow screens, and paper."""

from __future__ import annotations

from epochal.chaos.report.palette import DARK, LIGHT, variables

SHEET = (
    f"""
:root{{color-scheme:light dark;{variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}
@media print{{:root{{color-scheme:light;{variables(LIGHT)}--page:#ffffff;}}}}
"""
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink)}
body{font:16px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.05rem;font-weight:600;color:var(--muted);margin:0 0 12px;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:0 0 4px}
h3{font-size:1rem;margin:16px 0 4px}
p{margin:0 0 8px;max-width:84ch}
.note{max-width:none}
a{color:var(--link)}
code,pre{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.875em;overflow-wrap:anywhere}
pre{white-space:pre-wrap;margin:0}
section{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:20px;margin:0 0 20px}
.note{color:var(--muted);font-size:.9rem}
.verdict{border-width:3px;border-left-width:14px;overflow-wrap:anywhere}
.verdict.valid{border-color:var(--valid);background:var(--valid-soft)}
.verdict.invalid{border-color:var(--invalid);background:var(--invalid-soft);border-style:double}
.verdict.invalid{border-width:6px 6px 6px 14px}
.verdict.unknown{border-color:var(--unknown);background:var(--unknown-soft);border:4px dashed var(--unknown)}
.verdict h2{font-size:2rem;line-height:1.2;margin-bottom:10px}
.verdict p{font-size:1.05rem}
.verdict pre{margin:4px 0 8px;padding:8px 12px;background:var(--paper);border:1px solid var(--line);border-radius:6px}
.verdict pre{max-height:14em;overflow:auto}
.sign{display:inline-block;min-width:1.3em;font-weight:700}
.valid .sign,td.valid,th.valid{color:var(--valid)}
.invalid .sign,td.invalid,th.invalid{color:var(--invalid)}
.unknown .sign,td.unknown,th.unknown{color:var(--unknown)}
td.valid,td.invalid,td.unknown{white-space:nowrap}
td.invalid,td.unknown{font-weight:700}
td.unknown{text-decoration:underline dashed;text-underline-offset:4px}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(104px,1fr));gap:10px;margin:0 0 20px;padding:0}
.figures div{background:var(--paper);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.figures dt{color:var(--muted);font-size:.85rem}
.figures dd{margin:0;font-size:1.3rem;font-weight:600;white-space:nowrap;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto;margin:8px 0}
.wide:focus-visible,summary:focus-visible,a:focus-visible{outline:3px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.9rem}
caption{text-align:left;color:var(--muted);padding:0 0 4px}
th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;border-bottom:1px solid var(--line)}
td{overflow-wrap:anywhere;min-width:5.5em}
thead th{color:var(--muted);font-weight:600;white-space:nowrap}
tbody th{font-weight:600}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;min-width:0;padding-right:20px}
.name{min-width:9em}
.text{min-width:15em}
.about th{white-space:nowrap;padding-right:24px}
details{border-top:1px solid var(--line);padding:8px 0}
summary{cursor:pointer;font-weight:600;overflow-wrap:anywhere}
ul{columns:22em;padding-left:1.4em;margin:0}
.chart{display:block;height:auto;max-width:100%;font:12px "DejaVu Sans",Verdana,Arial,sans-serif}
.chart *{stroke-linejoin:round;stroke-linecap:butt}
footer{color:var(--muted);font-size:.85rem}
@media (max-width:600px){
main{padding:12px 8px 32px}
section{padding:14px 12px}
.verdict h2{font-size:1.6rem}
}
@media print{
body{font-size:10.5pt}
main{max-width:none;padding:0}
section{break-inside:auto;border-radius:0;padding:12px}
h2,h3,summary{break-after:avoid}
tr,.chart,.verdict{break-inside:avoid}
.chart{min-width:0!important}
table{font-size:8pt}
th,td{padding:3px 8px 3px 0}
thead th,thead .number{white-space:normal;overflow-wrap:anywhere;min-width:3.5em}
.number{padding-right:12px}
.name{min-width:7em}
.text{min-width:12em}
.figures{grid-template-columns:repeat(8,1fr);gap:4px}
.figures div{padding:6px 8px}
.figures dt{font-size:7.5pt}
.figures dd{font-size:11pt}
.wide{overflow:visible}
.screen{display:none}
.paper::details-content{content-visibility:visible;display:block;height:auto}
.verdict pre{max-height:none}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
@media print and (max-width:600px){
th,td{min-width:0!important;white-space:normal!important;overflow-wrap:anywhere}
.figures{grid-template-columns:repeat(3,1fr)}
}
"""
)
