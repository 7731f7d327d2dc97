"""The command `autotune import`: add the winners and predictors of an exported table to a database."""

import argparse


def import_command(options: argparse.Namespace) -> int:
    from autotune.lookup.json_table import read_contents
    from autotune.predict import add_predictors
    from autotune.store import Store

    contents = read_contents(options.file)
    with Store.open(options.db) as store:
        added, kept = store.import_winners(contents.winners, contents.devices)
        add_predictors(store, contents.predictors)
    because = ", because the stored ones are confirmed or faster" if kept else ""
    print(f"{added} imported, {kept} not imported{because}")
    return 0
