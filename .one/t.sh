cd /tmp/wt/one; export PYTHONPATH=/tmp/wt/one
timeout 580 /work/main/.venv/bin/python -m pytest -p no:langsmith_plugin -p no:cacheprovider -q -n 2 --dist loadgroup "$@" > /tmp/o1.txt 2>&1; grep -E "^E  |passed|failed|^____|^ERROR|^FAILED|Error" /tmp/o1.txt | cut -c1-180 | sort | uniq -c | sort -rn | head -${N:-40}
