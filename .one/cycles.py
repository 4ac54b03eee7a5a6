import sys,ast
sys.path.insert(0,"/tmp/one")
import graph
from pathlib import Path
graph.ROOT=Path(sys.argv[1])
mods=graph.load()
deps={m:{} for m in mods}
for m,p in mods.items():
    for n,t,name,al,k in graph.imports(ast.parse(p.read_text()),mods):
        if t in mods and t!=m: deps[m].setdefault(t,[]).append(name)
# tarjan
idx={};low={};st=[];on=set();out=[];c=[0]
sys.setrecursionlimit(5000)
def sc(v):
    idx[v]=low[v]=c[0];c[0]+=1;st.append(v);on.add(v)
    for w in deps[v]:
        if w not in idx: sc(w);low[v]=min(low[v],low[w])
        elif w in on: low[v]=min(low[v],idx[w])
    if low[v]==idx[v]:
        comp=[]
        while True:
            w=st.pop();on.discard(w);comp.append(w)
            if w==v:break
        if len(comp)>1: out.append(comp)
for v in mods:
    if v not in idx: sc(v)
for comp in out:
    print("CYCLE",len(comp))
    s=set(comp)
    for a in comp:
        for b in deps[a]:
            if b in s: print("   ",a,"->",b,deps[a][b])
