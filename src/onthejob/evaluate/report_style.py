"""The look of report.html: one style sheet, light and dark, from 320 pixels upwards."""

STYLE = """
:root{--bg:#fbfaf7;--card:#fff;--ink:#1d2430;--soft:#5a6473;--line:#dcdfe4;--grid:#e9ebee;--accent:#2458b8;--up:#14713f;
--down:#a8321f;--upbg:#e3f3e9;--downbg:#fae8e4;
--s0:#2458b8;--s1:#b4540a;--s2:#14713f;--s3:#7a3fc0;--s4:#b02a66;--s5:#0b6f80;--s6:#77591a;--s7:#4c5563}
@media (prefers-color-scheme:dark){:root{--bg:#14171c;--card:#1c2128;--ink:#e7eaee;--soft:#a3adba;--line:#343b46;--grid:#2a303a;
--accent:#84b0ff;--up:#6fd49a;--down:#ff9c86;--upbg:#173224;--downbg:#3b211c;
--s0:#84b0ff;--s1:#ffab66;--s2:#6fd49a;--s3:#c4a1fa;--s4:#ff8fb8;--s5:#5ecfe0;--s6:#dbbd6a;--s7:#b9c1cc}}
*{box-sizing:border-box}
html{scroll-padding-top:3.2rem}
body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
header,main{max-width:1200px;margin:0 auto;padding:0 1rem}
header{padding-top:2rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .4rem;letter-spacing:-.01em}
h2{font-size:1.25rem;margin:0 0 .6rem}
h3{font-size:1rem;margin:0 0 .4rem}
h3 small{font-weight:400;color:var(--soft);overflow-wrap:anywhere}
.lead{color:var(--soft);margin:0 0 1rem;max-width:70ch}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem;border-block:1px solid var(--line);padding:.45rem 0}
a{color:var(--accent)}
nav a{text-decoration:none;padding:.15rem 0}
nav a:hover{text-decoration:underline}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
section{padding:1.6rem 0 .4rem}
section>p,section>ul{max-width:75ch}
.hint,.caption,.empty{color:var(--soft);font-size:.875rem}
.note{border-left:3px solid var(--s1);padding-left:.7rem}
.grid-of-charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));
gap:1rem;align-items:start;margin:.8rem 0}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.75rem .75rem .5rem;min-width:0}
figcaption{font-weight:600;margin-bottom:.3rem}
.caption{margin:.25rem 0 .1rem}
svg{display:block;width:100%;height:auto;max-width:460px;overflow:visible}
.legend svg{width:30px;flex:none}
svg text{font-family:inherit;fill:var(--ink);stroke:none}
.tick{font-size:11px;fill:var(--soft);font-variant-numeric:tabular-nums}
.row{font-size:12px}
.group{font-size:12px;font-weight:600}
.grid{stroke:var(--grid)}
.zero{stroke:var(--soft);stroke-width:1.2}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.raw{fill:none;stroke-width:1;opacity:.22}
.mark{opacity:0}
.mark:hover{opacity:1}
.whisker{stroke-width:1.6}
.before{fill:none;stroke:var(--s7);stroke-width:1}
.after{fill:var(--s0)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;padding:0;margin:.3rem 0}
.legend li{display:flex;align-items:center;gap:.4rem;font-size:.9rem}
.swatch{width:14px;height:9px;display:inline-block}
.swatch.before{border:1px solid var(--s7)}
.swatch.after{background:var(--s0)}
.scroll{overflow-x:auto;margin:1rem 0;background:var(--card);border:1px solid var(--line);border-radius:8px}
td,tbody th{white-space:nowrap}
#configuration td{white-space:normal}
table{border-collapse:collapse;width:100%;font-size:.875rem}
caption{text-align:left;font-weight:600;padding:.6rem .75rem .35rem}
th,td{text-align:left;padding:.35rem .75rem;border-top:1px solid var(--grid);vertical-align:top;font-weight:400}
thead th{color:var(--soft);border-top:0;border-bottom:1px solid var(--line);white-space:nowrap}
tbody th{font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.up{color:var(--up);background:var(--upbg)}
.down{color:var(--down);background:var(--downbg)}
.up::before{content:"\\25B2\\00A0";font-size:.7em}
.down::before{content:"\\25BC\\00A0";font-size:.7em}
.reply{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.8rem;min-width:17rem;white-space:normal;overflow-wrap:anywhere}
#configuration td{overflow-wrap:anywhere}
.turn{border:1px solid var(--line);border-radius:8px;padding:.75rem;margin:1rem 0;background:var(--card)}
.turn .scroll{border:0;margin:.4rem 0 0}
.turn caption{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--bg);border:1px solid var(--line);border-radius:6px;padding:.6rem;
margin:.4rem 0;font:.8rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;max-height:22rem;overflow-y:auto}
summary{cursor:pointer;color:var(--accent)}
@media print{nav{display:none}figure,.turn{break-inside:avoid}pre{max-height:none}}
"""
