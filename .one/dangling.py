import re,sys
from pathlib import Path
sys.path.insert(0,"/tmp/one")
from combine import House
h=House(sys.argv[1]); mods=h.mods()
pk={m for m,p in mods.items() if p.name=="__init__.py"}
bad=set()
for p in h.texts():
    t=p.read_text(errors="replace")
    for m in re.finditer(r"(?<![\w./])(toolbus(?:\.[a-z_0-9]+)+)(?=[\s.;:)\"'`,\]]|$)",t):
        name=m[1]; parts=name.split(".")
        # longest module prefix
        k=len(parts)
        while k and ".".join(parts[:k]) not in mods: k-=1
        pre=".".join(parts[:k])
        if k<len(parts) and pre in pk and (p.suffix==".py"):
            bad.add((name,str(p.relative_to(h.root))))
    for m in re.finditer(r"toolbus/[a-z_0-9/]+\.py",t):
        if not (h.root/m[0]).exists(): bad.add((m[0],str(p.relative_to(h.root))))
for b in sorted(bad): print(*b)
