"""Embeds two Korean sentences with Triton's client, over the Open Inference Protocol.

    python -m examples.client.triton [ADDRESS]

It needs `pip install tritonclient[http]`. The model also serves /predictions.
"""

import sys

import numpy as np
import tritonclient.http

SENTENCES = [["한국은행이 기준금리를 동결했다."], ["삼성전자가 새 반도체 공장을 짓는다."]]


def main(address: str = "127.0.0.1:8080") -> None:
    """Send BYTES [2, 1], print FP32 [2, 384]."""
    with tritonclient.http.InferenceServerClient(address) as client:
        text = tritonclient.http.InferInput("text", [2, 1], "BYTES")
        text.set_data_from_numpy(np.array(SENTENCES, object))
        embedding = tritonclient.http.InferRequestedOutput("embedding")
        result = client.infer("sentence-embedding", [text], outputs=[embedding], request_id="news")
        vectors = result.as_numpy("embedding")
        print(result.get_response()["id"], vectors.dtype, vectors.shape, vectors[:, :3].round(4).tolist())


if __name__ == "__main__":
    main(*sys.argv[1:])
