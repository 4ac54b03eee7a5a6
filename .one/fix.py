import re,sys
from pathlib import Path
def mergekeys(path):
    s=Path(path).read_text(); out=[];seen={}
    for line in s.splitlines(keepends=True):
        m=re.match(r'^(\s+)("toolbus\.[\w.]+"): \((.*)\),\n$',line)
        if m:
            k=m[2]
            if k in seen:
                i=seen[k]; old=re.match(r'^(\s+)("toolbus\.[\w.]+"): \((.*)\),\n$',out[i])
                if old: out[i]=f'{old[1]}{k}: ({old[3].rstrip(", ")}, {m[3].rstrip(", ")}),\n'; continue
            seen[k]=len(out)
        out.append(line)
    Path(path).write_text("".join(out))
for p in Path("toolbus").rglob("__init__.py"):
    if "lazily" in p.read_text(): mergekeys(p)
