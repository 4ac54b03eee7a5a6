import sys, ast
sys.path.insert(0,"/tmp/one")
from combine import *
import graph
from collections import defaultdict
ROOT=sys.argv[1]; MODE=sys.argv[2]; CAP=int(sys.argv[3])
graph.ROOT=Path(ROOT)
h=House(ROOT)
def facts():
    mods=graph.load(); imp=defaultdict(lambda: defaultdict(set)); lines={}
    for m,p in mods.items():
        s=p.read_text(); lines[m]=len(s.splitlines())
        for n,t,name,al,k in graph.imports(ast.parse(s),mods): imp[t][m].add(k)
    return mods,imp,lines
skip=set(); 
SKIPPKG=("toolbus.compat","toolbus.adapters","toolbus.sync","toolbus.testing","toolbus.middleware")
if MODE=="collapse":
    mods,imp,lines=facts()
    pk=defaultdict(list)
    for m,p in mods.items():
        if p.name=="__init__.py": pk[m].append(m)
        elif "." in m: pk[m.rpartition(".")[0]].append(m)
    for k,ms in sorted(pk.items()):
        if k=="toolbus" or k.startswith(SKIPPKG): continue
        d=mods[k].parent
        if any(x.is_dir() and x.name!="__pycache__" for x in d.iterdir()): continue
        if any(x.suffix!=".py" and x.name!="__pycache__" for x in d.iterdir()): print("files in",k); continue
        if sum(lines[m] for m in ms)>CAP: continue
        try: combine(h,ms,k)
        except Abort as e: print("ABORT",k,e)
else:
    tried=set()
    while True:
        mods,imp,lines=facts(); did=0
        for a in sorted(mods, key=lambda m: lines[m]):
            if mods[a].name=="__init__.py" or a.startswith(SKIPPKG) or (a in tried): continue
            if len(imp[a])!=1: continue
            [b]=imp[a]
            if mods[b].name=="__init__.py" or b.startswith(SKIPPKG) or b.startswith("toolbus.cli") != a.startswith("toolbus.cli"): continue
            if imp[a][b]!={"top"}: continue
            if lines[a]+lines[b]>CAP or lines[a]>int(sys.argv[4]): continue
            if b in imp and a in imp and b in imp and a in imp[b]: continue
            tried.add(a)
            try: combine(h,[a,b],b); did+=1; break
            except Abort as e: print("ABORT",a,"into",b,e)
        if not did: break
