"""Combine modules of toolbus into one, with everything that names them."""
import ast, re, sys, subprocess, builtins
from pathlib import Path
from collections import defaultdict, OrderedDict

class Abort(Exception): pass

class House:
    def __init__(self, root):
        self.root=Path(root)
    def path(self, m):
        p=self.root/Path(*m.split("."))
        if (p/"__init__.py").exists(): return p/"__init__.py"
        if p.with_suffix(".py").exists(): return p.with_suffix(".py")
        return None
    def mods(self):
        out={}
        for p in sorted((self.root/"toolbus").rglob("*.py")):
            parts=list(p.relative_to(self.root).with_suffix("").parts)
            if parts[-1]=="__init__": parts.pop()
            out[".".join(parts)]=p
        return out
    def py(self):
        for d in ("toolbus","tests","benchmarks","workers","deploy","docs","examples",".ci"):
            p=self.root/d
            if p.exists(): yield from p.rglob("*.py")
    def texts(self):
        files=subprocess.run(["git","ls-files","-co","--exclude-standard"],cwd=self.root,capture_output=True,text=True).stdout.split("\n")
        for f in files:
            if not f or f.startswith("docs/adr/") : continue
            p=self.root/f
            if p.suffix in {".py",".md",".toml",".yml",".yaml",".json",".ipynb",".cfg",".ini",".txt",".lua",""} and p.is_file() and f!="CHANGELOG.md" and f!="docs/changelog.md":
                yield p

def is_tc(n): return isinstance(n,ast.If) and isinstance(n.test,ast.Name) and n.test.id=="TYPE_CHECKING"

def offs(src):
    o=[0]
    for l in src.splitlines(keepends=True): o.append(o[-1]+len(l.encode()))
    return o

class Mod:
    def __init__(self, name, path, house):
        self.name=name; self.path=path; self.src=path.read_text(); self.tree=ast.parse(self.src); self.mods=house.all
        self.doc=ast.get_docstring(self.tree, clean=False)
        self.imports=[]   # (key tuple, typeonly)
        self.defs=OrderedDict() # name->node
        self.bound={} # local alias -> ("mod",module) or ("from",module,name)
        self.typebound={}
        self.remove=[] # line ranges of top-level statements
        body=self.tree.body
        start=0
        if self.doc is not None:
            self.remove.append((body[0].lineno,body[0].end_lineno)); start=1
        for n in body[start:]:
            if isinstance(n,(ast.Import,ast.ImportFrom)):
                seg="\n".join(self.src.splitlines()[n.lineno-1:n.end_lineno])
                if "noqa" in seg and "F401" in seg: raise Abort(f"{name}: noqa on import: {seg}")
                self.add(n,False); self.remove.append((n.lineno,n.end_lineno))
            elif is_tc(n):
                keep=[c for c in n.body if not isinstance(c,(ast.Import,ast.ImportFrom))]
                if keep or n.orelse: raise Abort(f"{name}: TYPE_CHECKING block with more")
                for c in n.body: self.add(c,True)
                self.remove.append((n.lineno,n.end_lineno))
            else:
                for d in self.names(n): self.defs[d]=n
    def names(self,n):
        if isinstance(n,(ast.FunctionDef,ast.AsyncFunctionDef,ast.ClassDef)): return [n.name]
        out=[]
        if isinstance(n,ast.Assign):
            for t in n.targets:
                out+= [x.id for x in ast.walk(t) if isinstance(x,ast.Name)]
        elif isinstance(n,(ast.AnnAssign,ast.AugAssign)):
            if isinstance(n.target,ast.Name): out.append(n.target.id)
        elif isinstance(n,(ast.If,ast.Try,ast.For,ast.With)):
            for c in ast.walk(n):
                if isinstance(c,(ast.FunctionDef,ast.ClassDef)) : out.append(c.name)
                if isinstance(c,ast.Name) and isinstance(c.ctx,ast.Store): out.append(c.id)
                if isinstance(c,(ast.Import,ast.ImportFrom)): raise Abort(f"{self.name}: conditional import")
        elif isinstance(n,ast.TypeAlias) if hasattr(ast,"TypeAlias") else False: out.append(n.name.id)
        return out
    def add(self,n,typeonly):
        if isinstance(n,ast.Import):
            for a in n.names:
                self.imports.append((("import",a.name,a.asname),typeonly,n))
                self.bound[a.asname or a.name.split(".")[0]]=("mod",a.name if a.asname else a.name.split(".")[0])
        else:
            if n.level: raise Abort("relative")
            for a in n.names:
                full=f"{n.module}.{a.name}"
                b=("mod",full) if full in self.mods else ("from",n.module,a.name)
                self.imports.append((("from",n.module,a.name,a.asname),typeonly,n))
                self.bound[a.asname or a.name]=b

def simple_same(a,b,d):
    x,y=a.defs[d],b.defs[d]
    if not isinstance(x,(ast.Assign,ast.AnnAssign)) : return False
    if ast.dump(x)!=ast.dump(y): return False
    # every name in it is bound alike
    for n in ast.walk(y):
        if isinstance(n,ast.Name) and n.id!=d:
            if n.id in a.defs or n.id in b.defs: return False
            if a.bound.get(n.id)!=b.bound.get(n.id): return False
    return True

def deep(house,b,depth=0):
    """Follow re-exports of packages."""
    if b[0]!="from" or depth>4 or b[1] not in house.all: return b
    p=house.all[b[1]]
    if p.name!="__init__.py": return b
    c=house.cache.get(p)
    if c is None:
        c={}
        for n in ast.parse(p.read_text()).body:
            if isinstance(n,ast.ImportFrom) and n.module:
                for a in n.names: c[a.asname or a.name]=("from",n.module,a.name)
        house.cache[p]=c
    return deep(house,c[b[2]],depth+1) if b[2] in c else b

def combine(house, members, target, doc=None, dry=False, verbose=True):
    house.all=house.mods()
    members=list(members)
    pkg_collapse = target in house.all and house.all[target].name=="__init__.py"
    ms={}
    for m in members:
        if m not in house.all: raise Abort(f"no {m}")
        ms[m]=Mod(m,house.all[m],house)
        if "__name__ == \"__main__\"" in ms[m].src or re.search(r"\b__file__\b",ms[m].src.replace('"__file__"','')): raise Abort(f"{m}: main or __file__")
        if "__all__" in ms[m].defs and m!=target: 
            if ms[m].path.name=="__init__.py": pass
            else: raise Abort(f"{m}: __all__")
    group=set(members)
    import cyc
    path=cyc.would_cycle(house.root,members,target)
    if path: raise Abort("cycle: "+" -> ".join(path))
    # order
    deps={m:{b[1] for b in [ *ms[m].bound.values()] if b[1] in group and b[1]!=m} for m in members}
    typeonly={m:set() for m in members}
    for m in members:
        for key,t,n in ms[m].imports:
            if t:
                b=ms[m].bound[key[3] or key[2]] if key[0]=="from" else None
                if b and b[1] in deps[m] and not any((not t2) and k2[0]=="from" and ms[m].bound[k2[3] or k2[2]][1]==b[1] for k2,t2,_ in ms[m].imports): deps[m].discard(b[1])
    order=[]; seen={}
    def visit(m,trail):
        if seen.get(m)==2: return
        if seen.get(m)==1: raise Abort(f"cycle {trail}")
        seen[m]=1
        for d in sorted(deps[m], key=members.index): visit(d,trail+[d])
        seen[m]=2; order.append(m)
    for m in members: visit(m,[m])
    # renames
    final={} # (module, name)->final name
    taken={} # name -> ("def",m) | origin
    house.cache={}; drop=set()
    for m in order:
        M=ms[m]
        init_reexport = M.path.name=="__init__.py"
        for alias,b in M.bound.items():
            if b[1] in group: continue
            if alias in taken and taken[alias]!=b:
                if deep(house,taken[alias])==deep(house,b) and b[0]=="from":
                    drop.add((b[1],b[2])); continue
                raise Abort(f"import of {alias} differs: {m}: {b} / {taken[alias]}")
            taken[alias]=b
    for m in order:
        M=ms[m]; stem=m.rpartition(".")[2].strip("_")
        for d in M.defs:
            if d=="__all__": continue
            name=d
            if d in taken:
                if d=="_": continue
                if taken[d][0]=="def" and simple_same(ms[taken[d][1]],M,d):
                    final[(m,d)]=d; M.remove.append((M.defs[d].lineno,M.defs[d].end_lineno)); continue
                new = (f"_{stem.upper()}{d}" if d.strip("_").isupper() else f"_{stem}{d}" if d.strip("_")[:1].islower() else f"_{stem.title().replace('_','')}{d.strip('_')}") if d.startswith("_") else None
                if new is None or new in taken: raise Abort(f"name {d} of {m} is taken by {taken[d]}")
                name=new
            final[(m,d)]=name; taken[name]=("def",m)
    def origin(b):
        # follow re-exports among members
        if b[0]=="from":
            m,n=b[1],b[2]
            for _ in range(5):
                if (m,n) in final: return final[(m,n)]
                if m in ms and n in ms[m].bound and ms[m].bound[n][0]=="from":
                    bb=ms[m].bound[n]
                    if bb[1] in group: m,n=bb[1],bb[2]; continue
                    return n
                break
            raise Abort(f"can't find {b}")
        raise Abort(f"{b}")
    bodies=[]; header=OrderedDict()
    for m in order:
        M=ms[m]; src=M.src
        data=src.encode(); o=offs(src)
        edits=[] # (start,end,new)
        ren={d:f for (mm,d),f in final.items() if mm==m and d!=f}
        nsalias={}
        for alias,b in M.bound.items():
            if b[1] in group:
                if b[0]=="mod" : nsalias[alias]=b[1]
                else:
                    f=origin(b)
                    if f!=alias: ren[alias]=f
        removed=M.remove
        def inrem(l): return any(a<=l<=z for a,z in removed)
        handled=set()
        lazyalias={}
        for n in ast.walk(M.tree):
            if isinstance(n,(ast.ImportFrom,ast.Import)) and not inrem(n.lineno):
                # lazy import inside functions
                if isinstance(n,ast.ImportFrom) and n.module:
                    mine=[]; other=[]
                    for a in n.names:
                        full=f"{n.module}.{a.name}"
                        if full in group: lazy_ns=True; nsalias[a.asname or a.name]=full; mine.append(a)
                        elif n.module in group:
                            f=origin(("from",n.module,a.name)); mine.append(a)
                            if f!=(a.asname or a.name): ren[a.asname or a.name]=f
                        else: other.append(a)
                    if mine:
                        s=o[n.lineno-1]; e=o[n.end_lineno]
                        if other:
                            col=n.col_offset
                            txt=" "*col+f"from {n.module} import "+", ".join(a.name+(f" as {a.asname}" if a.asname else "") for a in other)+"  # noqa: PLC0415\n"
                            edits.append((s,e,txt.encode()))
                        else: edits.append((s,e,b""))
        for n in ast.walk(M.tree):
            if isinstance(n,ast.Attribute) and isinstance(n.value,ast.Name) and n.value.id in nsalias:
                tgt=nsalias[n.value.id]; handled.add(id(n.value))
                attr=n.attr
                if (tgt,attr) in final: f=final[(tgt,attr)]
                elif attr in ms[tgt].bound: f=origin(("from",tgt,attr)) if ms[tgt].bound[attr][1] in group else attr
                else: raise Abort(f"{m}: {n.value.id}.{attr} unknown")
                s=o[n.lineno-1]+n.col_offset; e=o[n.end_lineno-1]+n.end_col_offset
                edits.append((s,e,f.encode()))
        localnames=defaultdict(set)
        for fn in ast.walk(M.tree):
            if isinstance(fn,(ast.FunctionDef,ast.AsyncFunctionDef,ast.Lambda)):
                for a in ast.walk(fn.args):
                    if isinstance(a,ast.arg) and (a.arg in ren or a.arg in nsalias): raise Abort(f"{m}: argument shadows {a.arg}")
                if not isinstance(fn,ast.Lambda):
                    for x in ast.walk(fn):
                        if isinstance(x,ast.Name) and isinstance(x.ctx,ast.Store) and (x.id in ren) : raise Abort(f"{m}: local shadows {x.id}")
        topfn={id(n) for n in M.tree.body}
        fresh=set(ren.values())
        for fn in ast.walk(M.tree):
            if isinstance(fn,(ast.FunctionDef,ast.AsyncFunctionDef)):
                st={x.id for x in ast.walk(fn) if isinstance(x,ast.Name) and isinstance(x.ctx,ast.Store)}|{a.arg for a in ast.walk(fn.args) if isinstance(a,ast.arg)}
                newuse={f for x in ast.walk(fn) if isinstance(x,ast.Name) and x.id in ren for f in [ren[x.id]]}|{n.attr for n in ast.walk(fn) if isinstance(n,ast.Attribute) and isinstance(n.value,ast.Name) and n.value.id in nsalias}
                if st&newuse: raise Abort(f"{m}: {fn.name} stores {st&newuse}")
        for n in ast.walk(M.tree):
            if isinstance(n,ast.Name) and n.id in ren and not inrem(n.lineno):
                s=o[n.lineno-1]+n.col_offset; edits.append((s,s+len(n.id.encode()),ren[n.id].encode()))
            elif isinstance(n,ast.Name) and n.id in nsalias and id(n) not in handled and not inrem(n.lineno): raise Abort(f"{m}: namespace {n.id} as value")
            elif isinstance(n,(ast.FunctionDef,ast.AsyncFunctionDef,ast.ClassDef)) and id(n) in topfn and n.name in ren:
                line=src.splitlines()[n.lineno-1]; col=line.index(n.name, n.col_offset+3 if not isinstance(n,ast.ClassDef) else n.col_offset+5)
                s=o[n.lineno-1]+len(line[:col].encode()); edits.append((s,s+len(n.name.encode()),ren[n.name].encode()))
            elif isinstance(n,(ast.Global,)) and any(x in ren for x in n.names):
                s=o[n.lineno-1]; seg=data[s:o[n.end_lineno]].decode()
                for x in n.names:
                    if x in ren: seg=re.sub(rf"\b{x}\b",ren[x],seg)
                edits.append((s,o[n.end_lineno],seg.encode()))
            elif isinstance(n,ast.Constant) and isinstance(n.value,str) and ren:
                # forward references in strings: cast("X", ..)
                if n.value in ren: raise Abort(f"{m}: string {n.value}")
        for a,z in removed: edits.append((o[a-1],o[z],b""))
        edits.sort(key=lambda x:(x[0],x[1]))
        out=b""; pos=0
        for s,e,t in edits:
            if s<pos: raise Abort(f"{m}: overlapping edits")
            out+=data[pos:s]+t; pos=e
        out+=data[pos:]
        text=out.decode().strip("\n")
        if M.path.name=="__init__.py" and m==target:
            # drop re-exports
            text=re.sub(r"__all__ = \[.*?\]\n?","",text,flags=re.S).strip("\n") if "__all__" in M.defs else text
        bodies.append((m,text))
        for key,t,n in M.imports:
            b=M.bound[(key[3] or key[2]) if key[0]=="from" else (key[2] or key[1].split(".")[0])]
            if key[0]=="from":
                full=f"{key[1]}.{key[2]}"
                if key[1] in group or full in group: continue
                if (key[1],key[2]) in drop: continue
            elif key[1] in group: raise Abort("import group")
            header[key]=header.get(key,True) and t
    doc = doc or ms[target].doc if target in ms and ms[target].doc else doc or ms[order[-1]].doc
    lines=[f'"""{doc}"""',"","from __future__ import annotations",""]
    def imp(k): return f"import {k[1]}"+(f" as {k[2]}" if k[2] else "") if k[0]=="import" else f"from {k[1]} import {k[2]}"+(f" as {k[3]}" if k[3] else "")
    tc=[]
    for k,t in header.items():
        if k[:2]==("from","__future__"): continue
        (tc if t else lines).append(imp(k))
    if tc:
        if not any("TYPE_CHECKING" in l for l in lines): lines.append("from typing import TYPE_CHECKING")
        lines+=["","if TYPE_CHECKING:"]+["    "+imp(k) for k in [k for k,t in header.items() if t]]
    else: lines=[l for l in lines if l!="from typing import TYPE_CHECKING"]
    text="\n".join(lines)+"\n\n"+"\n\n\n".join(t for m,t in bodies if t)+"\n"
    ast.parse(text)
    if dry: return text
    # write
    newpath=house.root/Path(*target.split(".")).with_suffix(".py")
    for m in members:
        if ms[m].path!=newpath: ms[m].path.unlink()
    if pkg_collapse:
        d=house.root/Path(*target.split("."))
        import shutil; shutil.rmtree(d/"__pycache__",ignore_errors=True)
        left=list(d.iterdir())
        if left: raise RuntimeError(f"left in {d}: {left}")
        d.rmdir()
    newpath.write_text(text)
    # outside: namespace imports
    outer=[m for m in members if m!=target]
    for p in house.py():
        if p==newpath: continue
        src=p.read_text()
        if not any(m.rpartition(".")[0] in src for m in outer): continue
        try: tree=ast.parse(src)
        except SyntaxError: continue
        L=src.splitlines(keepends=True); changes=[]
        for n in ast.walk(tree):
            if isinstance(n,ast.ImportFrom) and n.module and not n.level:
                hit=[a for a in n.names if f"{n.module}.{a.name}" in outer]
                if hit:
                    tp,_,tl=target.rpartition(".")
                    rest=[a for a in n.names if a not in hit]
                    ind=" "*n.col_offset
                    tail=re.search(r"(\s*# noqa.*)$",L[n.end_lineno-1].rstrip("\n")) or re.search(r"(\s*# noqa.*)$",L[n.lineno-1].rstrip("\n"))
                    tail=tail[1] if tail else ""
                    new=""
                    if rest: new+=f"{ind}from {n.module} import "+", ".join(a.name+(f" as {a.asname}" if a.asname else "") for a in rest)+tail+"\n"
                    for a in hit:
                        al=a.asname or a.name
                        new+=f"{ind}from {tp} import {tl}"+(f" as {al}" if al!=tl else "")+tail+"\n"
                    changes.append((n.lineno,n.end_lineno,new))
        if changes:
            for a,z,new in sorted(changes,reverse=True): L[a-1:z]=[new]
            p.write_text("".join(L))
    # text
    pats=[]
    for m in sorted(outer,key=len,reverse=True):
        pats.append((re.compile(r"(?<![\w.])"+re.escape(m)+r"(?!\w)"),target))
        rel="/".join(m.split("."))+".py"; pats.append((re.compile(re.escape(rel)),str(newpath.relative_to(house.root))))
    if pkg_collapse:
        rel=str(Path(*target.split(".")));
        pats.append((re.compile(r"(?<![\w/.])"+re.escape(rel)+r"/(?![\w*])"),str(newpath.relative_to(house.root))))
        # below toolbus/
        sh=rel.removeprefix("toolbus/")
    priv={d:f for (mm,d),f in final.items() if d!=f}
    for p in house.texts():
        src=p.read_text(errors="surrogateescape") if p.suffix=="" else p.read_text()
        new=src
        for pat,t in pats:
            new=pat.sub(t,new)
        if new!=src: p.write_text(new)
    if verbose: print(f"{target}: {len(members)} -> 1, {len(text.splitlines())} lines"+(f", renamed {sorted(priv.items())}" if priv else ""))
    return priv
