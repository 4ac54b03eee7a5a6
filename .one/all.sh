set -e
cd /tmp/wt/one; R=/work/main/.venv/bin/ruff
fmt() { $R check --fix -q . || true; $R format -q .; }
git reset -q --hard ${BASE:-main}; git clean -qfd toolbus
python3 /tmp/one/auto.py /tmp/wt/one collapse 480; fmt; git add -A; git commit -qm c1
python3 /tmp/one/auto.py /tmp/wt/one merge 420 110; fmt; git add -A; git commit -qm c2
mkdir -p toolbus/broker/lua; for f in $(git ls-files 'toolbus/broker/*.lua'); do d=toolbus/broker/lua/$(dirname ${f#toolbus/broker/}); mkdir -p $d; git mv $f $d/; done
sed -i 's#pkgutil.get_data("toolbus.broker", f"{name}.lua")#pkgutil.get_data("toolbus.broker", f"lua/{name}.lua")#' toolbus/broker/scripts.py
sed -i 's#^\(LUA = .*\)"toolbus" / "broker"#\1"toolbus" / "broker" / "lua"#' tests/test_protocol_doc.py
sed -i 's/^_FOLDER = Path(scripts.__file__).parent$/_FOLDER = Path(scripts.__file__).parent \/ "lua"/' tests/mutate_lua.py
git add -A; git commit -qm c3
python3 /tmp/one/auto.py /tmp/wt/one collapse 660; fmt; git add -A; git commit -qm c4
python3 /tmp/one/manual.py /tmp/wt/one; python3 /tmp/one/fix.py; fmt; git add -A; git commit -qm c5
python3 /tmp/one/auto.py /tmp/wt/one merge 480 200; python3 /tmp/one/fix.py; fmt; git add -A; git commit -qm c6
$R check . | grep -E "^[A-Z]+[0-9]+|-->" | head -40
find toolbus -name "*.py" | wc -l
python3 /tmp/one/cycles.py /tmp/wt/one
rm -rf .mypy_cache; /work/main/.venv/bin/mypy toolbus 2>&1 | tail -15
