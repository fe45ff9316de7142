"""The data plane: gateway, talker and codec stages that pass code frames through Redis Streams."""
