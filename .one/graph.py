"""Module graph of toolbus."""
import ast, re, sys
from pathlib import Path
from collections import defaultdict
ROOT=Path(sys.argv[1] if len(sys.argv)>1 else "/work/main")
def modname(p):
    parts=list(p.relative_to(ROOT).with_suffix("").parts)
    if parts[-1]=="__init__": parts.pop()
    return ".".join(parts)
def load():
    mods={}
    for p in sorted((ROOT/"toolbus").rglob("*.py")):
        mods[modname(p)]=p
    return mods
def imports(tree, mods):
    """Yield (node, target module, names, kind) kind: top|type|lazy"""
    out=[]
    def visit(node, kind):
        for ch in ast.iter_child_nodes(node):
            k=kind
            if isinstance(ch,(ast.FunctionDef,ast.AsyncFunctionDef,ast.Lambda)): k="lazy"
            elif isinstance(ch,ast.If) and "TYPE_CHECKING" in ast.dump(ch.test): 
                for c in ch.body: handle(c,"type" if kind=="top" else kind); visit(c,"type")
                for c in ch.orelse: handle(c,kind); visit(c,kind)
                continue
            handle(ch,k if not isinstance(ch,(ast.FunctionDef,ast.AsyncFunctionDef)) else kind)
            visit(ch,k)
    def handle(n,kind):
        if isinstance(n,ast.ImportFrom) and n.module and n.module.split(".")[0]=="toolbus" and n.level==0:
            for a in n.names:
                full=f"{n.module}.{a.name}"
                if full in mods: out.append((n,full,None,a.asname or a.name,kind))
                else: out.append((n,n.module,a.name,a.asname or a.name,kind))
        elif isinstance(n,ast.Import):
            for a in n.names:
                if a.name.split(".")[0]=="toolbus": out.append((n,a.name,None,a.asname or a.name,kind))
    visit(tree,"top")
    return out
if __name__=="__main__":
    mods=load()
    imp=defaultdict(lambda: defaultdict(list)); lines={}
    for m,p in mods.items():
        s=p.read_text(); lines[m]=len(s.splitlines())
        for n,t,name,al,k in imports(ast.parse(s),mods): imp[t][m].append((name,k))
    single=[(m,list(imp[m])[0]) for m in mods if len(imp[m])==1 and mods[m].name!="__init__.py"]
    print(len(mods),len(single),sum(lines.values()))
    kinds=defaultdict(int)
    for a,b in single:
        ks={k for _,k in imp[a][b]}; ns=any(n is None for n,_ in imp[a][b])
        kinds[(tuple(sorted(ks)),ns, mods[b].name=="__init__.py")]+=1
    print(dict(kinds))
    print(sum(1 for a,b in single if lines[a]+lines[b]<=500 ), sum(1 for a,b in single if lines[a]<=120))
