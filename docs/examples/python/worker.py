import torpor

with torpor.connect(name="engine", quiesce=torpor.Quiesce.GUARD) as session:
    weights = session.allocate("weights", 64 << 20)       # an address, for whatever library you use
    cache = session.allocate("kv_cache", 32 << 20)
    session.write(weights, b"parameters")

    with session.work():                                  # nothing is unmapped under what is submitted
        assert session.read(weights, 10) == b"parameters"

    print(session.sleep(level=1))                         # weights to host memory, the cache dropped
    print(session.usage().tags["weights"])
    session.wake_up("weights")                            # the same address, the same bytes
    assert session.read(weights, 10) == b"parameters"
    session.wake_up()
    assert session.read(cache, 4) == bytes(4)
