import ast,sys
sys.path.insert(0,"/tmp/one")
import graph
from pathlib import Path
CACHE={}
def deps_all(root):
    graph.ROOT=Path(root); mods=graph.load(); names=frozenset(mods)
    out={}
    for m,p in mods.items():
        st=p.stat(); key=(str(p),st.st_mtime_ns,st.st_size)
        raw=CACHE.get(key)
        if raw is None:
            raw=[]
            for n in ast.walk(ast.parse(p.read_text())):
                if isinstance(n,ast.ImportFrom) and n.module and n.module.startswith("toolbus"):
                    raw+= [(n.module,a.name) for a in n.names]
                elif isinstance(n,ast.Import): raw+=[(a.name,None) for a in n.names if a.name.startswith("toolbus")]
            CACHE[key]=raw
        s=set()
        for mod,name in raw:
            f=f"{mod}.{name}"
            t=f if name and f in names else mod
            if t in names and t!=m: s.add(t)
        out[m]=s
    return out
def would_cycle(root, members, target):
    g=set(members); deps={}
    def norm(m): return "@G" if m in g else m
    for m,ts in deps_all(root).items():
        for t in ts:
            a,b=norm(m),norm(t)
            if a!=b: deps.setdefault(a,set()).add(b)
    seen=set(); stack=[(d,["@G",d]) for d in deps.get("@G",())]
    while stack:
        v,path=stack.pop()
        if v=="@G": return path
        if v in seen: continue
        seen.add(v)
        for w in deps.get(v,()): stack.append((w,path+[w]))
    return None
