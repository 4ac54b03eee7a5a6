import sys, ast
sys.path.insert(0,"/tmp/one")
from combine import *
import cyc
ROOT=sys.argv[1]; SMALL=int(sys.argv[2]); CAP=int(sys.argv[3])
h=House(ROOT)
SKIP=("toolbus.compat","toolbus.adapters","toolbus.sync","toolbus.cli","toolbus.demo")
tried=set()
while True:
    deps=cyc.deps_all(ROOT); mods=h.mods()
    lines={m:len(p.read_text().splitlines()) for m,p in mods.items()}
    did=False
    for a in sorted(mods,key=lambda m:lines[m]):
        if lines[a]>SMALL: break
        if mods[a].name=="__init__.py" or a.startswith(SKIP) or a.count(".")<2: continue
        pkg=a.rpartition(".")[0]
        sib=[b for b in mods if b!=a and b.rpartition(".")[0]==pkg and mods[b].name!="__init__.py" and (b in deps[a] or a in deps[b])]
        for b in sorted(sib,key=lambda m:lines[m]):
            if (a,b) in tried or lines[a]+lines[b]>CAP: continue
            tried.add((a,b))
            try: combine(h,[a,b],b if lines[b]>=lines[a] else a); did=True; break
            except Abort as e: pass
        if did: break
    if not did: break
