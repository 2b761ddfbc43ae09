"""Bundle -> analysis.json: the only place where statistics meet Arrow (results/README.md, "Manifest, ledger, analysis" and "Numbers").

``samples`` groups the rows, ``analyst`` feeds the statistics, ``document`` writes the JSON, ``summary`` says it in words.
"""
