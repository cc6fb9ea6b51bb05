"""One adapter per peer, all alike, each run in the environment of its peer.

They use nothing of the project but each other. An adapter has

    LOOP                    "sync", "asyncio", "uvloop" or "trio": where its producer runs
    Producer                open, add, add_many, wait, close; awaited unless LOOP is "sync"
    worker(at_once)         runs for ever, or gives the words of a command that does

`add_flow`, where the peer has that, takes the data of a parent and of its children.
`add` and `add_many` take the job's data and, where the peer can, `delay` (s) or `priority`.
"""
