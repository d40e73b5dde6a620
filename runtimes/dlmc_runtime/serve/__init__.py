"""An HTTP server over loaded bundles, with the API that OpenAI's clients speak."""
